"""A Slurm of the tests: controller, nodes and munge on loopback, all state in one folder."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from ports import free_port
from waiting import wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
CONF = """\
ClusterName=test
SlurmctldHost={machine}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={root}/run/munge.socket
CredType=cred/munge
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
SlurmctldPidFile={root}/run/slurmctld.pid
SlurmdPidFile={root}/run/slurmd-%n.pid
SlurmctldLogFile={root}/log/slurmctld.log
SlurmdLogFile={root}/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
ReturnToService=2
MinJobAge=300
KillWait=2
SlurmdTimeout=0
PlugStackConfig={root}/etc/plugstack.conf
"""


def missing() -> str | None:
    """Return why Slurm cannot run here, None where it can."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    absent = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if absent:
        return f"no {absent[0]}: .ci/install_slurm installs it"
    if importlib.util.find_spec("snakemake_executor_plugin_slurm") is None:
        return "no snakemake-executor-plugin-slurm: uv sync --extra slurm"
    try:
        socket.getaddrinfo("127.0.0.1", 1, socket.AF_INET, flags=socket.AI_ADDRCONFIG)
    except socket.gaierror:
        return "Slurm resolves no address where no interface but loopback has one"
    return None


class Slurm:
    """One controller and some nodes, which are all this machine.

    Without accounting: its state is asked with squeue alone.
    """

    def __init__(self, root: Path, nodes: list[str]) -> None:
        self.root = root
        self.nodes = nodes
        self._started: list[subprocess.Popen[bytes]] = []

    @property
    def conf(self) -> Path:
        return self.root / "etc" / "slurm.conf"

    def environment(self) -> dict[str, str]:
        """What a process needs to talk to it.

        Snakemake's plugin strips SLURM_CONF from the steps that it starts, as a cluster has
        its configuration where Slurm looks by itself: the wrapped srun gives it back.
        """
        return {
            "SLURM_CONF": str(self.conf),
            "PATH": f"{self.root}/bin:{os.environ['PATH']}:/usr/sbin",
        }

    def start(self) -> None:
        for name in ("etc", "state", "spool", "log", "run", "bin"):
            (self.root / name).mkdir(mode=0o755)
        self._write_conf()
        wrapped = self.root / "bin" / "srun"
        wrapped.write_text(f'#!/bin/sh\nSLURM_CONF={self.conf} exec {shutil.which("srun")} "$@"\n')
        wrapped.chmod(0o755)
        run = self.root / "run"
        self._daemon(
            "munged",
            "--foreground",
            f"--key-file={self.root}/etc/munge.key",
            f"--socket={run}/munge.socket",
            f"--pid-file={run}/munged.pid",
            f"--log-file={self.root}/log/munged.log",
            f"--seed-file={run}/munge.seed",
        )
        self._wait(lambda: self._says("munge", "-S", f"{run}/munge.socket", "-n"), "munged")
        self._daemon("slurmctld", "-D", "-i")
        for node in self.nodes:
            self._daemon("slurmd", "-D", "-N", node)
        idle = ["idle"] * len(self.nodes)
        self._wait(lambda: self._says("sinfo", "-h", "-N", "-o", "%t").split() == idle, "slurmd")

    def _write_conf(self) -> None:
        key = self.root / "etc" / "munge.key"
        with open(os.open(key, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(os.urandom(128))
        machine = socket.gethostname().split(".")[0]
        ports: set[int] = set()
        while len(ports) < 1 + len(self.nodes):
            ports.add(free_port())
        first, *others = ports
        text = CONF.format(machine=machine, port=first, user=Path.home().owner(), root=self.root)
        shape = f"CPUs={os.cpu_count()} RealMemory=16000 State=UNKNOWN"
        for node, port in zip(self.nodes, others, strict=True):
            where = f"NodeHostname={machine} NodeAddr=127.0.0.1 Port={port}"
            text += f"NodeName={node} {where} {shape}\n"
        text += f"PartitionName=main Nodes={','.join(self.nodes)} Default=YES MaxTime=INFINITE "
        text += "State=UP\n"
        self.conf.write_text(text)
        (self.root / "etc" / "plugstack.conf").touch()

    def _daemon(self, *words: str) -> None:
        program = shutil.which(words[0], path=f"{os.environ['PATH']}:/usr/sbin")
        assert program is not None
        with open(self.root / "log" / f"{words[0]}.{len(self._started)}.out", "wb") as log:
            self._started.append(
                subprocess.Popen(
                    [program, *words[1:]],
                    env={**os.environ, **self.environment()},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def _says(self, *words: str) -> str:
        done = subprocess.run(
            words,
            env={**os.environ, **self.environment()},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        return done.stdout if done.returncode == 0 else ""

    def _wait(self, is_ready: Callable[[], object], what: str) -> None:
        def is_up() -> bool:
            logs = "\n".join(p.read_text(errors="replace") for p in (self.root / "log").iterdir())
            assert all(p.poll() is None for p in self._started), f"{what}: {logs[-4000:]}"
            return bool(is_ready())

        wait_until(is_up, f"{what}; its log is in {self.root}/log")

    def queue(self) -> list[str]:
        """Return the jobs that run or wait."""
        return self._says("squeue", "-h", "-o", "%i %T").splitlines()

    def stop(self) -> None:
        self._says("scancel", "--quiet", f"--user={Path.home().owner()}")
        for process in reversed(self._started):
            process.terminate()
        for process in reversed(self._started):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            if process.poll() is None:
                process.kill()
                process.wait()


@contextlib.contextmanager
def running(nodes: list[str]) -> Iterator[Slurm]:
    """Start Slurm in a folder of its own under /tmp: munge wants one that everyone may walk."""
    root = Path(tempfile.mkdtemp(prefix="kvroad-slurm-", dir="/tmp"))
    root.chmod(0o755)
    slurm = Slurm(root, nodes)
    try:
        slurm.start()
        yield slurm
    finally:
        slurm.stop()
        shutil.rmtree(root, ignore_errors=True)
