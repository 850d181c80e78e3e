"""Command ``build``: a Debian disk image with NIXL, twice, and a kernel to boot it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import recipe
from rig import USER, Rig, RigError, read_json, require_tools, run, timed, write_json

_DEBOOTSTRAP_S = 1800.0
_STEP_S = 600.0
_DISK_BYTES = 6_000_000_000


def build(rig: Rig, mirror: str) -> None:
    """Build image, kernel and key, or take what is there.

    A build that broke off goes on: packages and wheel are kept, and so is a whole root tree.

    Raises
    ------
    RigError
        When a tool, the right to make a root tree, disk or network is missing.
    """
    if is_built(rig):
        print(f"built already: {rig.image}")
        return
    if read_json(rig.guest):
        raise RigError("the guest may be running from the image to be replaced; run stop first")
    require_tools("debootstrap", "mke2fs", "ssh-keygen")
    if os.geteuid() != 0:
        raise RigError(
            "debootstrap needs root: "
            f"sudo env KVROAD_RIG_DIR={rig.folder} {sys.executable} {sys.argv[0]} build"
        )
    free = shutil.disk_usage(rig.folder).free
    if free < _DISK_BYTES:
        raise RigError(f"{rig.folder}: {free / 1e9:.1f} GB free, a build needs 6 GB")
    started = time.monotonic()
    times: dict[str, float] = {}
    log = rig.folder / "build.log"
    root = rig.folder / "root"
    with timed(times, "key"):
        _make_key(rig, log)
    with timed(times, "wheel"):
        wheel = _download_wheel(rig, log)
    with timed(times, "debootstrap"):
        _debootstrap(rig, root, mirror, log)
    with timed(times, "configure"):
        _configure(rig, root, log)
    with timed(times, "nixl"):
        _install_nixl(root, wheel, log)
    with timed(times, "image"):
        _make_image(rig, root, log)
    # Half a root tree must not be taken for a whole one by a later build.
    write_json(rig.built, {"recipe": recipe.digest(), "seconds": times})
    shutil.rmtree(root)
    _hand_over(rig)
    print(f"built {rig.image} in {time.monotonic() - started:.0f} s")


def is_built(rig: Rig) -> bool:
    """Return whether the image is there and is what the recipe says."""
    parts = (rig.image, rig.kernel, rig.initrd, rig.key, rig.host_key)
    is_whole = all(path.exists() for path in parts)
    return is_whole and read_json(rig.built).get("recipe") == recipe.digest()


def _make_key(rig: Rig, log: Path) -> None:
    if not rig.key.exists():
        words: list[str | Path] = [
            "-q",
            "-t",
            "ed25519",
            "-N",
            "",
            "-C",
            "kvroad soft-roce rig",
            "-f",
            rig.key,
        ]
        run(["ssh-keygen", *words], "ssh-keygen", log, 60.0)


def _download_wheel(rig: Rig, log: Path) -> Path:
    wheels = rig.folder / "wheels"
    name = recipe.NIXL.replace("-", "_").replace("==", "-")
    if not list(wheels.glob(f"{name}-*.whl")):
        words = [*("--no-deps", "--only-binary=:all:", "--python-version", recipe.PYTHON)]
        words += ["--platform", recipe.WHEEL_PLATFORM, "--dest", str(wheels), recipe.NIXL]
        run([*_pip(), "download", *words], f"pip download {recipe.NIXL}", log, _STEP_S)
    return next(wheels.glob(f"{name}-*.whl"))


def _pip() -> list[str]:
    own = [sys.executable, "-m", "pip"]
    if subprocess.run([*own, "--version"], capture_output=True, check=False).returncode == 0:
        return own
    found = shutil.which("pip3") or shutil.which("pip")
    if found is None:
        raise RigError("pip not found: apt-get install python3-pip")
    return [found]


def _debootstrap(rig: Rig, root: Path, mirror: str, log: Path) -> None:
    if (root / "etc" / "debian_version").exists():
        return
    partial = rig.folder / "root.partial"
    packages = rig.folder / "packages"
    packages.mkdir(exist_ok=True)
    if partial.exists():
        shutil.rmtree(partial)
    include = ",".join(recipe.INCLUDE)
    words = ["--arch=amd64", "--variant=minbase", f"--cache-dir={packages}", f"--include={include}"]
    argv: list[str | Path] = ["debootstrap", *words, recipe.SUITE, partial, mirror]
    run(argv, f"debootstrap of {recipe.SUITE} from {mirror}", log, _DEBOOTSTRAP_S)
    partial.rename(root)


def _configure(rig: Rig, root: Path, log: Path) -> None:
    for name, text in recipe.FILES.items():
        _write(root / name.lstrip("/"), text)
    if f"{USER}:" not in (root / "etc" / "passwd").read_text():
        _chroot(root, ["useradd", "--create-home", "--shell", "/bin/bash", USER], log)
    public = rig.key.with_suffix(".pub").read_text()
    for home, owner in (("root", "root"), (f"home/{USER}", USER)):
        _write(root / home / ".ssh" / "authorized_keys", public)
        _chroot(root, ["chown", "-R", f"{owner}:", f"/{home}/.ssh"], log)
        _chroot(root, ["chmod", "-R", "go=", f"/{home}/.ssh"], log)
    _chroot(root, ["systemctl", "enable", *recipe.ENABLED], log)
    _chroot(root, ["systemctl", "mask", *recipe.MASKED], log)


def _install_nixl(root: Path, wheel: Path, log: Path) -> None:
    carried = root / "opt" / "kvroad" / wheel.name
    carried.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(wheel, carried)
    for venv in (recipe.VENV, recipe.VENV_WHEEL):
        _chroot(root, ["python3", "-m", "venv", "--clear", "--system-site-packages", venv], log)
        words = ["--quiet", "--no-index", "--no-deps", f"/opt/kvroad/{wheel.name}"]
        _chroot(root, [f"{venv}/bin/pip", "install", *words], log)
    carried.unlink()
    packages = root / recipe.VENV.lstrip("/") / "lib" / f"python{recipe.PYTHON}" / "site-packages"
    for pattern, library in recipe.REPLACED.items():
        found = list(packages.glob(f"*.libs/{pattern}"))
        if not found:
            raise RigError(f"{wheel.name} holds no {pattern}: the rig does not know this wheel")
        for path in found:
            path.unlink()
            path.symlink_to(f"{recipe.SYSTEM_LIBRARIES}/{library}")


def _make_image(rig: Rig, root: Path, log: Path) -> None:
    rig.built.unlink(missing_ok=True)
    for kind, target in (("vmlinuz", rig.kernel), ("initrd.img", rig.initrd)):
        shutil.copy(next((root / "boot").glob(f"{kind}-*")), target)
    shutil.copy(root / "etc" / "ssh" / "ssh_host_ed25519_key.pub", rig.host_key)
    partial = rig.image.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    words: list[str | Path] = [
        "-q",
        "-t",
        "ext4",
        "-L",
        "root",
        "-d",
        root,
        partial,
        recipe.IMAGE_SIZE,
    ]
    run(["mke2fs", *words], "mke2fs", log, _STEP_S)
    partial.replace(rig.image)


def _hand_over(rig: Rig) -> None:
    """Give the folder to who called sudo: booting needs no root."""
    user, group = os.environ.get("SUDO_UID"), os.environ.get("SUDO_GID")
    if user and group:
        for path in (rig.folder, *rig.folder.iterdir()):
            os.chown(path, int(user), int(group))


def _chroot(root: Path, argv: list[str], log: Path) -> None:
    run(["chroot", root, *argv], f"in the guest's root: {' '.join(argv[:3])}", log, _STEP_S)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
