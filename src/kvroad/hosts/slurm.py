"""Hosts that Slurm allocates: kvroad runs inside the job, and the agent where the job landed."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kvroad.errors import UserError
from kvroad.hosts.local import LocalMachine
from kvroad.hosts.machine import HostLost, Machine
from kvroad.study.fields import Host, HostSide
from kvroad.study.kinds import Allocation, Connection
from kvroad.study.sides import is_split

__all__ = ["KIND"]

_CALL_S = 30.0
# What a network file system may take to show one node what another has written.
_VISIBLE_S = 60.0
# Of a step's environment, what tells the next srun where it is; the rest would shape its step.
_KEPT = ("SLURM_CONF", "SLURM_CLUSTER_NAME", "SLURM_JOB_ID")


def _job_id(host: Host) -> str:
    """Return the number of the job that this process is in.

    Raises
    ------
    UserError
        Outside of any job.
    """
    number = os.environ.get("SLURM_JOB_ID")
    if number is None:
        raise UserError(
            f"host {host.name} is a node that Slurm allocates, and this is no Slurm job: "
            "give Snakemake '--profile profiles/slurm'"
        )
    return number


def _allocate(host: Host) -> Allocation:
    """Return the job with the host that has got its node, or one for each half, in it.

    Addresses are no part of what a cell is named by: which nodes it ran on stands in its
    facts.

    Raises
    ------
    UserError
        Outside of a job, or where it has fewer than two nodes.
    """
    number = _job_id(host)
    nodes = _nodes(number)
    if not is_split(host):
        address = os.environ.get("SLURMD_NODENAME") or nodes[0]
        return Allocation(number, replace(host, address=address))
    if len(nodes) < 2:
        raise UserError(
            f"host {host.name}: prefill and decode need two nodes, Slurm job {number} has "
            f"{len(nodes)}"
        )
    prefill, decode = _on_node(host.prefill, nodes[0]), _on_node(host.decode, nodes[1])
    return Allocation(number, replace(host, prefill=prefill, decode=decode))


def _on_node(side: HostSide, node: str) -> HostSide:
    return replace(side, address=node, bind_address=side.bind_address or _address(node))


def _nodes(number: str) -> list[str]:
    # In a step the variable SLURM_JOB_NODELIST may name the nodes of the step.
    names = _ask("squeue", "-h", "-j", number, "-o", "%N")
    return _ask("scontrol", "show", "hostnames", names.strip()).split()


def _address(node: str) -> str:
    """Return the address at which Slurm itself reaches a node."""
    found = re.search(r"NodeAddr=(\S+)", _ask("scontrol", "-o", "show", "node", node))
    return found[1] if found else node


def _ask(*words: str) -> str:
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=_CALL_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostLost(f"{words[0]}: {error}") from error
    if done.returncode != 0:
        raise HostLost(f"{' '.join(words)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


class SlurmNode(LocalMachine):
    """A node of this job's allocation, on which srun starts the agent as a step.

    Also on the node that kvroad itself is on: the step that Snakemake's job runs in may have
    been given a single core of it. Work folder and Python lie on a file system that the nodes
    share.
    """

    def __init__(self, host: Host) -> None:
        self._job = _job_id(host)
        self._node = host.address or ""
        super().__init__(host)
        self.label = f"host {host.name} (node {self._node} of Slurm job {self._job})"

    def fetch(self, launch: str, target: Path) -> None:
        """Move the raw folder of a launch to ``target`` once it is to be seen here."""
        deadline = time.monotonic() + _VISIBLE_S
        while not self.has_raw_folder(launch) and time.monotonic() < deadline:
            time.sleep(0.5)
        super().fetch(launch, target)

    def _node_folder(self) -> Path:
        return self._work_dir / self._node

    def _argv(self, words: Sequence[str]) -> list[str]:
        unset = [n for n in os.environ if n.startswith(("SLURM_", "SRUN_")) and n not in _KEPT]
        return [
            "env",
            *(word for name in sorted(unset) for word in ("-u", name)),
            "srun",
            f"--jobid={self._job}",
            # The step that this is said in holds all that the job has.
            "--overlap",
            *("--nodes=1", "--ntasks=1", f"--nodelist={self._node}"),
            # Threads that spin want every core of the node.
            "--cpu-bind=none",
            "--unbuffered",
            "--quiet",
            *super()._argv(list(words)),
        ]


def _open(host: Host) -> Machine:
    return SlurmNode(host)


KIND = Connection("slurm", open=_open, allocate=_allocate)
