"""The half of offline_gpu.py that has a network: download, check, slim, split.

The wheels are those of offline_gpu.lock.txt. Before anything is written every requirement of
every wheel is looked up: it is packed, given by the host's image, or left out for a reason that
stands here. So a renewed lock file that misses a package is refused here, not on the host.
"""

from __future__ import annotations

import email.parser
import fnmatch
import hashlib
import importlib.util
import io
import json
import subprocess
import sys
import tarfile
import zipfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offline_gpu import FORMAT, MODEL_SCRIPT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

LOCK = Path(__file__).with_name("offline_gpu.lock.txt")
PYTHON, MACHINE = "3.12", "x86_64"
# pip takes each tag literally: all that the locked wheels have.
_MANYLINUX = ("2_34", "2_31", "2_28", "2_27", "2_26", "2_24", "2_17", "2_12", "2_5", "2014", "1")
_MARKERS = {
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_machine": MACHINE,
    "platform_python_implementation": "CPython",
    "platform_system": "Linux",
    "python_full_version": f"{PYTHON}.0",
    "python_version": PYTHON,
    "sys_platform": "linux",
}

# What the host's image has, with the version where the engines depend on it.
GIVEN = {
    "torch": "2.11.0",
    "torchvision": None,
    "torchaudio": None,
    "numpy": "2.5.2",
    "triton": None,
    "grpcio": None,
    "numba": None,
    "uvloop": None,
    "ninja": None,
    "opencv-python-headless": None,
    "pillow": None,
    "cryptography": None,
    "setuptools": None,
}

# Required by a wheel and not packed: a dense model with FLASH_ATTN on Hopper does not need them.
LEFT_OUT = {
    "flashinfer-python": "another attention backend",
    "flashinfer-cubin": "another attention backend",
    "tilelang": "kernels of sparse models",
    "nvidia-cudnn-frontend": "kernels of another attention backend",
    "nvidia-cutlass-dsl": "kernels that are built when first used",
    "quack-kernels": "kernels that are built when first used",
    "tokenspeed-mla": "MLA models",
    "humming-kernels": "quantized models",
    "fastsafetensors": "another way to load weights",
    "hf-xet": "downloads from a hub",
    "fastapi-cli": "a command of its own",
    "fastar": "a command of its own",
    "nixl-cu12": "CUDA 13 is the host's",
    "kubernetes": "Dynamo's discovery is a folder",
    "zstandard": "Dynamo's upload of model metadata",
}

# (who requires, what) where the locked version is not the required one, and works.
CONTRADICTED = {
    ("vllm", "apache-tvm-ffi"): "0.1.9 is pinned for flashinfer",
    ("ai-dynamo-runtime", "pydantic"): "2.13.4 is a patch of the 2.13 that is allowed",
    ("mistral-common", "numpy"): "below 2.4 is asked for; the host has 2.5.2",
}

# Members left out, by distribution. A pattern that matches nothing is refused.
DROPPED = {
    "vllm": (
        "vllm/vllm-rs",
        "vllm/vllm_flash_attn/_vllm_fa2_C.*",  # Hopper takes _vllm_fa3_C
        "vllm/third_party/deep_gemm/_C.cpython-31[!2]-*",
    ),
    "xgrammar": ("*.a",),
    "nixl-cu13": (
        "nixl_ep_cu13/nixl_ep_cpp_*",
        "*perftest*",
        "*telemetry_reader*",
        "*GPUNETIO*",
        "*INFINIA*",
        "*.data/headers/*",
    ),
    "pycountry": ("pycountry/locales/*",),
}

# Large members that deflate to less than half of their size, code and not CUDA's already
# compressed images, get far smaller with LZMA.
_LZMA_FROM_BYTES = 1 << 20
_LZMA_BELOW_RATIO = 0.5


@dataclass(frozen=True)
class Wheel:
    """A downloaded wheel and what its metadata says."""

    path: Path
    name: str
    version: Version
    requires: tuple[Requirement, ...]


def pack(folder: Path, part_bytes: int) -> None:
    """Write the manifest and the parts of all locked wheels into ``folder``."""
    # Without a manifest the folder is no pack: nobody carries old parts with new ones.
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").unlink(missing_ok=True)
    for old in folder.glob("part-[0-9][0-9]"):
        old.unlink()
    download(folder / "wheels")
    wheels = [read_wheel(path) for path in sorted((folder / "wheels").glob("*.whl"))]
    problems = missing_requirements(wheels)
    if problems:
        sys.exit("error: " + "; ".join(problems))
    slims = slim_all(wheels, folder / "slim")
    parts = write_parts(slims, folder, part_bytes)
    manifest = {
        "format": FORMAT,
        "python": PYTHON,
        "machine": MACHINE,
        "wheels": {wheel.name: str(wheel.version) for wheel in wheels},
        "given": GIVEN,
        "left_out": LEFT_OUT,
        "dropped": DROPPED,
        "parts": parts,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1))
    total = sum(part["bytes"] for part in parts)
    print(f"{len(wheels)} wheels, {total} bytes in {len(parts)} parts: {folder}/part-??")


def download(folder: Path) -> None:
    """Download the locked wheels for the host's Python; pip checks their hashes."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {line.split()[0] for line in LOCK.read_text().splitlines() if "==" in line}
    for path in folder.glob("*.whl"):
        wheel = read_wheel(path)
        if f"{wheel.name}=={wheel.version}" not in wanted:
            path.unlink()
    words = ["download", "--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes"]
    words += ["--python-version", PYTHON, "--implementation", "cp", "--dest", str(folder)]
    for tag in _MANYLINUX:
        separator = "_" if "_" in tag else ""
        words += ["--platform", f"manylinux{separator}{tag}_{MACHINE}"]
    argv = [*_pip(), *words, "--requirement", str(LOCK)]
    print("+", *argv, flush=True)
    subprocess.run(argv, check=True)


def _pip() -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    return ["uv", "run", "--quiet", "--no-project", "--with", "pip", "python", "-m", "pip"]


def read_wheel(path: Path) -> Wheel:
    """Return what the metadata of a wheel says (core metadata 2.x)."""
    with zipfile.ZipFile(path) as archive:
        own = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        if len(own) != 1:
            sys.exit(f"error: {path} has {len(own)} METADATA files; a wheel has one")
        metadata = email.parser.BytesParser().parsebytes(archive.read(own[0]))
    requires = tuple(Requirement(text) for text in metadata.get_all("Requires-Dist") or ())
    return Wheel(path, canonicalize_name(metadata["Name"]), Version(metadata["Version"]), requires)


def missing_requirements(wheels: list[Wheel]) -> list[str]:
    """Return one phrase for each requirement that the host would lack or have wrongly."""
    packed = {wheel.name: wheel.version for wheel in wheels}
    given = {name: version and Version(version) for name, version in GIVEN.items()}
    asked = _asked_extras(wheels)
    problems = []
    for wheel in wheels:
        for requirement in _applying(wheel, asked.get(wheel.name, set())):
            name = canonicalize_name(requirement.name)
            if name in packed or name in given:
                version = packed.get(name) or given.get(name)
                is_right = version is None or requirement.specifier.contains(version, True)
                if not is_right and (wheel.name, name) not in CONTRADICTED:
                    problems.append(f"{wheel.name} requires {requirement}, not {version}")
            elif name not in LEFT_OUT:
                problems.append(f"{wheel.name} requires {requirement}, which is not packed")
    return problems


def _asked_extras(wheels: list[Wheel]) -> dict[str, set[str]]:
    """Return the extras that packed wheels ask of each other."""
    by_name = {wheel.name: wheel for wheel in wheels}
    asked: dict[str, set[str]] = {}
    todo = list(wheels)
    while todo:
        wheel = todo.pop()
        for requirement in _applying(wheel, asked.get(wheel.name, set())):
            name = canonicalize_name(requirement.name)
            known = asked.setdefault(name, set())
            if requirement.extras - known:
                known |= requirement.extras
                todo += [by_name[name]] if name in by_name else []
    return asked


def _applying(wheel: Wheel, extras: set[str]) -> list[Requirement]:
    def applies(requirement: Requirement) -> bool:
        marker = requirement.marker
        tried = [{**_MARKERS, "extra": extra} for extra in ("", *sorted(extras))]
        return marker is None or any(marker.evaluate(environment) for environment in tried)

    return [requirement for requirement in wheel.requires if applies(requirement)]


def slim_all(wheels: list[Wheel], folder: Path) -> list[Path]:
    """Write slim copies of all wheels, in two processes or more, and return their paths."""
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()
    # The largest first: they take minutes.
    wheels = sorted(wheels, key=lambda wheel: -wheel.path.stat().st_size)
    with ProcessPoolExecutor() as pool:
        return sorted(pool.map(slim, wheels, [folder / wheel.path.name for wheel in wheels]))


def slim(wheel: Wheel, copy: Path) -> Path:
    """Copy a wheel without the members that ``DROPPED`` names; returns the copy's path."""
    patterns = DROPPED.get(wheel.name, ())
    used = set()
    with zipfile.ZipFile(wheel.path) as source, zipfile.ZipFile(copy, "w") as target:
        for info in source.infolist():
            matching = {p for p in patterns if fnmatch.fnmatchcase(info.filename, p)}
            used |= matching
            if not matching:
                target.writestr(info, source.read(info), _compression(info), 9)
    for pattern in patterns:
        if pattern not in used:
            sys.exit(f"error: {wheel.path.name} has no member {pattern}: look at DROPPED anew")
    return copy


def _compression(info: zipfile.ZipInfo) -> int:
    is_large = info.file_size >= _LZMA_FROM_BYTES
    if is_large and info.compress_size < _LZMA_BELOW_RATIO * info.file_size:
        return zipfile.ZIP_LZMA
    return zipfile.ZIP_DEFLATED


class Parts(io.RawIOBase):
    """A file that goes on in the next part when one is full."""

    def __init__(self, folder: Path, part_bytes: int) -> None:
        self.paths: list[Path] = []
        self._folder, self._part_bytes, self._left = folder, part_bytes, 0

    def writable(self) -> bool:
        """Say that it can be written."""
        return True

    def write(self, data: Any) -> int:
        """Write all of ``data``, into as many parts as it takes."""
        view = memoryview(data)
        while view:
            if not self._left:
                self.paths.append(self._folder / f"part-{len(self.paths):02}")
                self.paths[-1].write_bytes(b"")
                self._left = self._part_bytes
            piece = view[: self._left]
            with open(self.paths[-1], "ab") as file:
                file.write(piece)
            self._left -= len(piece)
            view = view[len(piece) :]
        return len(data)


def write_parts(slims: list[Path], folder: Path, part_bytes: int) -> list[dict[str, Any]]:
    """Write wheels and the model's script as one tar archive in parts; returns their facts."""
    parts = Parts(folder, part_bytes)
    with tarfile.open(fileobj=parts, mode="w|", bufsize=1 << 20) as archive:
        for path in slims:
            archive.add(path, f"wheels/{path.name}", filter=_plain)
        archive.add(LOCK.with_name(MODEL_SCRIPT), MODEL_SCRIPT, filter=_plain)
    facts = []
    for path in parts.paths:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        facts.append({"name": path.name, "bytes": path.stat().st_size, "sha256": digest})
    return facts


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out who packed and when: the same lock file gives the same parts."""
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    info.mode = 0o644
    return info
