"""Commands ``boot`` and ``stop``: the guest under QEMU, reached over SSH."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

from image import is_built
from rig import (
    DEFAULT_PORT,
    HOST_NAME,
    USER,
    Rig,
    RigError,
    last_line,
    read_json,
    require_tools,
    write_json,
)

_READY_S = 400.0
_CLEAN_STOP_S = 120.0
_UNASKED_STOP_S = 20.0
_TERM_S = 20.0
# RoCE is up when the port of the software NIC says so.
_CHECK = "cat /sys/class/infiniband/rxe0/ports/1/state && ulimit -l"


def boot(rig: Rig, port: int | None, memory_mib: int) -> None:
    """Start the guest and wait until SSH answers and the RoCE port is active.

    Raises
    ------
    RigError
        When there is no image, the port is taken, or the guest does not come up in time.
    """
    require_tools("qemu-system-x86_64", "ssh")
    if not is_built(rig):
        raise RigError(f"no image of this recipe in {rig.folder}: run build")
    if running_pid(rig) is not None:
        print(f"running already, pid {running_pid(rig)}")
    else:
        _start(rig, _free_port(port), memory_mib)
    state = read_json(rig.guest)
    waited = _wait_until_ready(rig)
    if "ready_s" not in state:
        write_json(rig.guest, {**state, "ready_s": waited})
        print(f"ready after {waited:.0f} s")
    print(f"ssh -F {rig.ssh_config} {HOST_NAME}")


def stop(rig: Rig) -> None:
    """Shut the guest down: cleanly, else by the id of its process."""
    pid = running_pid(rig)
    if pid is None:
        rig.guest.unlink(missing_ok=True)
        print("not running")
        return
    started = time.monotonic()
    try:
        _ssh(rig, "root", "systemctl poweroff", 30.0)
        wait_s = _CLEAN_STOP_S
    except RigError:
        # Its own going down may cut the connection; so may a guest that never came up.
        wait_s = _UNASKED_STOP_S
    how = "cleanly"
    if not _is_gone(rig, wait_s):
        how = _end(rig, pid)
    rig.guest.unlink(missing_ok=True)
    print(f"stopped {how} after {time.monotonic() - started:.0f} s")


def running_pid(rig: Rig) -> int | None:
    """Return the id of the guest's process, None where it has ended.

    The start time tells it from a later process with the same id.
    """
    state = read_json(rig.guest)
    if state.get("start_ticks") is None:
        return None
    return int(state["pid"]) if _start_ticks(state["pid"]) == state["start_ticks"] else None


def _start(rig: Rig, port: int, memory_mib: int) -> None:
    _write_ssh_files(rig, port)
    argv = [
        *("qemu-system-x86_64", "-machine", "q35", "-cpu", "max", "-smp", "2"),
        # Not KVM: a guest inside a virtual machine can hang before its first line.
        *("-accel", "tcg,thread=multi", "-m", str(memory_mib)),
        *("-display", "none", "-no-reboot", "-serial", f"file:{rig.console}"),
        *("-kernel", str(rig.kernel), "-initrd", str(rig.initrd)),
        *("-append", "root=/dev/vda rw console=ttyS0 net.ifnames=0 mitigations=off"),
        *("-drive", f"file={rig.image},format=raw,if=virtio"),
        *("-netdev", f"user,id=net0,hostfwd=tcp:127.0.0.1:{port}-:22"),
        *("-device", "virtio-net-pci,netdev=net0", "-device", "virtio-rng-pci"),
    ]
    rig.console.unlink(missing_ok=True)
    with open(rig.folder / "qemu.log", "wb") as log:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            close_fds=True,
        )
    ticks = _start_ticks(process.pid)
    write_json(rig.guest, {"pid": process.pid, "start_ticks": ticks, "port": port})
    print(f"booting, pid {process.pid}, port {port}", flush=True)


def _free_port(wanted: int | None) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", DEFAULT_PORT if wanted is None else wanted))
        except OSError as error:
            raise RigError(
                f"port {wanted or DEFAULT_PORT} of 127.0.0.1: {error.strerror}; "
                "choose another with --port, or --port 0 for any"
            ) from error
        return int(probe.getsockname()[1])


def _write_ssh_files(rig: Rig, port: int) -> None:
    kind, key, *_ = rig.host_key.read_text().split()
    rig.known_hosts.write_text(f"[127.0.0.1]:{port} {kind} {key}\n")
    rig.ssh_config.write_text(
        f"Host {HOST_NAME}\n"
        "    HostName 127.0.0.1\n"
        f"    Port {port}\n"
        f"    User {USER}\n"
        f'    IdentityFile "{rig.key}"\n'
        "    IdentitiesOnly yes\n"
        f'    UserKnownHostsFile "{rig.known_hosts}"\n'
        "    StrictHostKeyChecking yes\n"
    )


def _wait_until_ready(rig: Rig) -> float:
    started = time.monotonic()
    said = "no answer"
    while time.monotonic() - started < _READY_S:
        if running_pid(rig) is None:
            line = last_line(rig.folder / "qemu.log")
            rig.guest.unlink(missing_ok=True)
            raise RigError(f"QEMU ended: {line}; the console: {last_line(rig.console)}")
        try:
            said = _ssh(rig, USER, _CHECK, 30.0)
        except RigError as error:
            said = str(error)
        if "ACTIVE" in said and said.split()[-1] == "unlimited":
            return round(time.monotonic() - started, 1)
        time.sleep(2.0)
    text = " ".join(said.split())
    raise RigError(f"not ready within {_READY_S:.0f} s: {text}; see {rig.console}, then run stop")


def _ssh(rig: Rig, user: str, command: str, timeout_s: float) -> str:
    argv = ["ssh", "-F", str(rig.ssh_config), "-o", "BatchMode=yes", "-o", "ConnectTimeout=20"]
    try:
        done = subprocess.run(
            [*argv, "-l", user, HOST_NAME, command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RigError(f"ssh did not answer within {timeout_s:.0f} s") from None
    if done.returncode != 0:
        raise RigError(
            done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "ssh failed"
        )
    return done.stdout


def _end(rig: Rig, pid: int) -> str:
    for name, wait_s in (("TERM", _TERM_S), ("KILL", _TERM_S)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, getattr(signal, f"SIG{name}"))
        if _is_gone(rig, wait_s):
            return f"by {name}"
    raise RigError(f"process {pid} outlives KILL")


def _is_gone(rig: Rig, timeout_s: float) -> bool:
    started = time.monotonic()
    while running_pid(rig) is not None:
        if time.monotonic() - started > timeout_s:
            return False
        time.sleep(0.5)
    return True


def _start_ticks(pid: int) -> int | None:
    """Return a process's start time in ticks since boot; None where it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])
