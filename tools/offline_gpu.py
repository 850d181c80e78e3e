"""Carry vLLM, NIXL and Dynamo to a GPU host without a network.

    pack FOLDER            on a machine with a network: FOLDER/manifest.json, part-00, part-01, ...
    unpack FOLDER TARGET   on the host: TARGET/bin/python, TARGET/model

``pack`` takes the wheels of offline_gpu.lock.txt and leaves out what a dense bf16 model on Hopper
does not use; each part is small enough to be carried alone. The host's image gives torch and the
other packages that ``GIVEN`` of offline_pack.py names. ``unpack`` needs Python alone.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import importlib.util
import io
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any

FORMAT = 1
MODEL_SCRIPT = "offline_model.py"
_PARTS_AT_MOST_MIB = 4096
_CHUNK = 1 << 20
# Members are handed to a process together until they are this large.
_BATCH_BYTES = 16 << 20
_BATCH_MEMBERS = 200


def main() -> None:
    """Pack, or unpack."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack", help="on a machine with a network")
    packing.add_argument("folder", type=Path)
    packing.add_argument("--part-mib", type=_part_mib, default=52, help="default: 52")
    unpacking = commands.add_parser("unpack", help="on the host")
    unpacking.add_argument("folder", type=Path, help="has manifest.json and the parts")
    unpacking.add_argument("target", type=Path, help="written anew")
    unpacking.add_argument(
        "--only-files", action="store_true", help="neither look at this host nor make the model"
    )
    arguments = parser.parse_args()
    try:
        if arguments.command == "pack":
            # Only here: it needs the package `packaging`, and the host has the standard library.
            from offline_pack import pack

            pack(arguments.folder.absolute(), arguments.part_mib << 20)
        else:
            unpack(arguments.folder, arguments.target.absolute(), arguments.only_files)
    except subprocess.CalledProcessError as error:
        sys.exit(f"error: {shlex.join(map(str, error.cmd))} ended with status {error.returncode}")
    except OSError as error:
        sys.exit(f"error: {error.filename or arguments.folder}: {error.strerror or error}")


def _part_mib(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _PARTS_AT_MOST_MIB:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 to 4096")
    return int(text)


def unpack(folder: Path, target: Path, only_files: bool = False) -> None:
    """Check the parts, unpack them into ``target`` and make the model there."""
    started = time.monotonic()
    manifest = read_manifest(folder)
    if not only_files:
        _check_host(manifest)
    if importlib.util.find_spec("_lzma") is None:
        sys.exit(f"error: {sys.executable} was built without lzma, which the wheels need")
    check_parts(folder, manifest)
    if target.exists() and not (target / "unpacked.json").exists() and any(target.iterdir()):
        sys.exit(f"error: {target} is not empty, and not of this script: name another folder")
    shutil.rmtree(target, ignore_errors=True)
    # Where virtual environments have it: the driver looks there for the versions.
    site = target / "lib" / f"python{manifest['python']}" / "site-packages"
    site.mkdir(parents=True)
    (target / "unpacked.json").write_text(json.dumps(manifest, indent=1))
    with tempfile.TemporaryDirectory(dir=target) as scratch:
        with tarfile.open(fileobj=_Joined(folder, manifest), mode="r|") as archive:
            archive.extractall(scratch, filter="data")
        n_files = unpack_wheels(sorted(Path(scratch, "wheels").glob("*.whl")), site)
        shutil.move(Path(scratch, MODEL_SCRIPT), target / MODEL_SCRIPT)
    python = write_python(target, site)
    print(f"{n_files} files in {site}, {time.monotonic() - started:.1f} s", flush=True)
    if not only_files:
        script, model = target / MODEL_SCRIPT, target / "model"
        subprocess.run([python, script, model], check=True)
    print(f"ready after {time.monotonic() - started:.1f} s: {python}")


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a pack."""
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_text())
        is_known = manifest["format"] == FORMAT
    except (ValueError, KeyError, TypeError):
        sys.exit(f"error: {path} is no manifest that `pack` wrote")
    if not is_known:
        sys.exit(f"error: {path} has format {manifest['format']}; this script reads {FORMAT}")
    return dict(manifest)


def _check_host(manifest: dict[str, Any]) -> None:
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if (here, platform.machine()) != (manifest["python"], manifest["machine"]):
        sys.exit(
            f"error: packed for Python {manifest['python']} on {manifest['machine']}; this is "
            f"Python {here} on {platform.machine()} (--only-files unpacks it all the same)"
        )
    missing = []
    for name in manifest["given"]:
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        print(f"warning: not packed, and not on this host: {', '.join(missing)}", file=sys.stderr)


def check_parts(folder: Path, manifest: dict[str, Any]) -> None:
    """End with one line for the first part that is missing or not as it was packed."""
    for part in manifest["parts"]:
        path = folder / part["name"]
        if not path.is_file():
            sys.exit(f"error: {path} is not there; the pack has {len(manifest['parts'])} parts")
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != part["sha256"]:
            sys.exit(
                f"error: {path} is not the part that was packed ({path.stat().st_size} of "
                f"{part['bytes']} bytes): carry it again"
            )


class _Joined(io.RawIOBase):
    """The bytes of all parts, one after the other."""

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self._chunks = _chunks([folder / part["name"] for part in manifest["parts"]])
        self._left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._left:
            self._left = next(self._chunks, b"")
        n = min(len(buffer), len(self._left))
        buffer[:n], self._left = self._left[:n], self._left[n:]
        return n


def _chunks(paths: list[Path]) -> Iterator[bytes]:
    for path in paths:
        with open(path, "rb") as file:
            while chunk := file.read(_CHUNK):
                yield chunk


def unpack_wheels(wheels: list[Path], site: Path) -> int:
    """Unpack wheels into one folder, in as many processes as there are cores.

    Returns the number of files. Programs, headers and data of a wheel have no place in such a
    folder and are left out. Where two wheels hold the same file, the later wheel's is taken.
    """
    members: dict[str, tuple[int, Path, str]] = {}
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for info in archive.infolist():
                place = _place(info, wheel)
                if place is not None:
                    members[place] = (info.file_size, wheel, info.filename)
    for folder in {(site / place).parent for place in members}:
        folder.mkdir(parents=True, exist_ok=True)
    workers = min(len(os.sched_getaffinity(0)), 32)
    with ProcessPoolExecutor(workers) as pool:
        batches = list(_batches(members))
        for _ in pool.map(_unpack_batch, batches, [site] * len(batches)):
            pass
    return len(members)


def _place(info: zipfile.ZipInfo, wheel: Path) -> str | None:
    """Return where a member goes below site-packages; None where it goes nowhere."""
    parts = PurePosixPath(info.filename).parts
    if not parts or ".." in parts or info.filename.startswith("/"):
        sys.exit(f"error: {wheel.name} has a member outside its folder: {info.filename!r}")
    if info.is_dir():
        return None
    if parts[0].endswith(".data"):
        return "/".join(parts[2:]) if parts[1] in ("purelib", "platlib") else None
    return "/".join(parts)


def _batches(members: dict[str, tuple[int, Path, str]]) -> Iterator[list[tuple[str, Path, str]]]:
    """Yield members to unpack together, the largest first: one of them may set the time."""
    batch: list[tuple[str, Path, str]] = []
    n_bytes = 0
    for place, (size, wheel, name) in sorted(members.items(), key=lambda item: -item[1][0]):
        batch.append((place, wheel, name))
        n_bytes += size
        if n_bytes >= _BATCH_BYTES or len(batch) >= _BATCH_MEMBERS:
            yield batch
            batch, n_bytes = [], 0
    if batch:
        yield batch


def _unpack_batch(batch: list[tuple[str, Path, str]], site: Path) -> None:
    archives: dict[Path, zipfile.ZipFile] = {}
    try:
        for place, wheel, name in batch:
            if wheel not in archives:
                archives[wheel] = zipfile.ZipFile(wheel)
            info = archives[wheel].getinfo(name)
            with archives[wheel].open(info) as source, open(site / place, "wb") as file:
                shutil.copyfileobj(source, file, _CHUNK)
            if (info.external_attr >> 16) & 0o111:
                (site / place).chmod(0o755)
    finally:
        for archive in archives.values():
            archive.close()


def write_python(target: Path, site: Path) -> Path:
    """Write ``bin/python``: this interpreter, which finds the unpacked packages first."""
    path = target / "bin" / "python"
    path.parent.mkdir()
    path.write_text(
        "#!/bin/sh\n"
        "# The interpreter that unpacked this folder; the packages here go before its own.\n"
        f"PYTHONPATH={shlex.quote(str(site))}${{PYTHONPATH:+:$PYTHONPATH}}\n"
        "export PYTHONPATH\n"
        f'exec {shlex.quote(sys.executable)} "$@"\n'
    )
    path.chmod(0o755)
    return path


if __name__ == "__main__":
    main()
