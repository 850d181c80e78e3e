"""One study over SSH that a test breaks, and what is measured of it."""

import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from proxy import Proxy
from sshd import Sshd
from waiting import LONGEST_S, wait_until

from kvroad.agent.processes import process_id

HERE = Path(__file__).parent
LEASE_S = 20.0
STOP_TIMEOUT_S = 3.0


@dataclass
class Row:
    """What one fault did."""

    fault: str
    seconds_until_clean: float | None
    processes_left: int
    cells_finished_before: int
    cells_lost: int
    message: str
    next_run: str
    note: str = ""


class Bench:
    """A checkout, an sshd behind a proxy, and a launch of processes that are hard to end."""

    def __init__(self, checkout, sshd: Sshd, folder: Path) -> None:
        self.checkout = checkout
        self.sshd = sshd
        self.fault_file = folder / "fault"
        self.proxy = Proxy(sshd.port)
        sshd.accept_on(self.proxy.port)
        ssh = checkout.home / ".ssh"
        ssh.mkdir(exist_ok=True)
        (ssh / "known_hosts").write_text(sshd.account.known_hosts.read_text())
        self.said = ""
        self._running: list[subprocess.Popen[str]] = []

    def words(self, length: int, *more: str) -> list[str]:
        """Return Snakemake's words for the cells that are finished and two of this length."""
        lengths = "[256]" if length == 256 else f"[256,{length}]"
        reach = [
            *self.sshd.overrides(port=self.proxy.port, timeout_s=LEASE_S),
            f"engine.stop_timeout_s={STOP_TIMEOUT_S:g}",
            f"+host.env.PYTHONPATH={HERE / 'engine'}",
            f"+host.env.FAULT_FILE={self.fault_file}",
            *more,
        ]
        return [
            *("all", "--until", "measure_launch", "--config", "study=smoke", "host=ssh"),
            *("transport=[shm]", f"prompt_tokens={lengths}", "hydra=" + " ".join(reach)),
        ]

    def start(self, length: int, fault: str, *more: str) -> "subprocess.Popen[str]":
        """Start a run in which something will go wrong."""
        self.fault_file.write_text(fault)
        with contextlib.suppress(FileNotFoundError):
            self.fault_file.with_suffix(".told").unlink()
        process = self.checkout.start(*self.words(length, *more))
        self._running.append(process)
        return process

    def await_told(self, what: str, process: "subprocess.Popen[str]") -> None:
        """Wait until the engine says that it is where the fault is to happen."""
        told = self.fault_file.with_suffix(".told")

        def is_there() -> bool:
            if process.poll() is not None:
                raise AssertionError(process.communicate())
            return told.exists() and told.read_text() == what

        wait_until(is_there, f"the engine, which is to be {what}")

    def finish(self, process: "subprocess.Popen[str]") -> str:
        """Wait for the end of a run and return what the user reads of it."""
        try:
            out, errors = process.communicate(timeout=LONGEST_S)
        finally:
            self.said = "" if process.returncode is None else out + errors
        self._running.remove(process)
        return self.without_paths(message_of(out + errors))

    def without_paths(self, text: str) -> str:
        """Return a message without what only this test's folders and ports say."""
        for found, shown in (
            (str(self.checkout.path), "CHECKOUT"),
            (str(self.sshd.node_dir), "WORK_DIR"),
            (str(self.proxy.port), "PORT"),
        ):
            text = text.replace(found, shown)
        return re.sub(r"\bpid \d+", "pid N", text)

    def complete(self, length: int, *more: str) -> str:
        """Run the same study undisturbed; return how it went."""
        self.fault_file.write_text("")
        done = self.checkout.snakemake(*self.words(length, *more))
        self.said = done.stdout + done.stderr
        assert done.returncode == 0, self.said
        if "fetched what an earlier run had left" in self.said:
            return "fetched the cell that was on the host, measured the others"
        if "ended what was left of an earlier launch" in self.said:
            return "ended what was left, measured what was missing"
        return "measured what was missing"

    def finished(self) -> dict[str, str]:
        """Return the proven cells and a hash of what each is made of."""
        found = {}
        for path in self.checkout.path.glob("results/cells/*/outcome.json"):
            manifest = path.parent / "raw/manifest.json"
            if json.loads(path.read_text())["outcome"] == "proven":
                data = path.read_bytes() + manifest.read_bytes()
                found[path.parent.name] = hashlib.sha256(data).hexdigest()
        return found

    def processes(self) -> list[int]:
        """Return what runs on the host for kvroad: agents and whatever came of them."""
        mark = str(self.sshd.node_dir)
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                is_ours = str((folder / "cwd").readlink()).startswith(mark)
                words = (folder / "cmdline").read_bytes().decode(errors="replace")
                if is_ours or (mark in words and "agent-" in words and "-c" not in words):
                    found.append(int(folder.name))
        return found

    def agent(self) -> int:
        """Return the pid of the agent that runs a launch."""
        for pid in self.processes():
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"run" in words and any(b"agent-" in word for word in words[:3]):
                return pid
        raise AssertionError("no agent is running")

    def agent_launches(self) -> list[str]:
        """Return the folders of the launches that are running."""
        return sorted(p.name for p in self.sshd.node_dir.glob("launches/*.partial"))

    def forget_boot(self, pid: int) -> None:
        """Make the ledger one of another boot that names a process of this one."""
        me = process_id(pid)
        assert me is not None
        ledgers = list(self.sshd.node_dir.glob("ledger/*.json"))
        assert ledgers
        for path in ledgers:
            data = json.loads(path.read_text())
            data["boot_id"] = "00000000-0000-0000-0000-000000000000"
            data["processes"].append({"pid": me.pid, "start_ticks": me.start_ticks})
            path.write_text(json.dumps(data))

    def seconds_until_clean(self, since: float) -> float:
        """Wait until nothing runs on the host; fails when something still does long after."""
        wait_until(lambda: not self.processes(), "the end of all processes on the host")
        return time.monotonic() - since

    def stop(self) -> None:
        """End whatever a failed test has left."""
        self.proxy.come_back()
        for process in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGCONT)
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        self._running.clear()
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def row(
        self,
        fault: str,
        seconds: float | None,
        before: dict[str, str],
        message: str,
        next_run: str,
        note: str = "",
    ) -> Row:
        """Return what a fault did, after the next run."""
        after = self.finished()
        lost = [cell for cell, digest in before.items() if after.get(cell) != digest]
        return Row(
            fault=fault,
            seconds_until_clean=None if seconds is None else round(seconds, 1),
            processes_left=len(self.processes()),
            cells_finished_before=len(before),
            cells_lost=len(lost),
            message=message,
            next_run=next_run,
            note=note,
        )


def message_of(text: str) -> str:
    """Return the first line that tells the user what went wrong."""
    lines = [line.strip() for line in text.splitlines()]
    told = [x for x in lines if x.startswith(("error: ", "stopped: ")) or ": failed: " in x]
    return told[0] if told else ""


def as_json(rows: list[Row]) -> str:
    return json.dumps([asdict(row) for row in rows], indent=1, ensure_ascii=False) + "\n"
