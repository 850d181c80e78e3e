"""Where plans run: this machine, a host over SSH, nodes of a Slurm job, one half on each of two."""

from __future__ import annotations

from kvroad.errors import UserError
from kvroad.hosts.agent_file import build_agent
from kvroad.hosts.agent_host import AgentHost, RunningHost
from kvroad.hosts.local import LocalMachine
from kvroad.hosts.machine import HostLost
from kvroad.hosts.pair import PairedHosts
from kvroad.hosts.slurm import SlurmNode
from kvroad.study import fields as study
from kvroad.study.sides import SIDES, is_split, side_host

__all__ = ["AgentHost", "HostLost", "RunningHost", "build_agent", "open_host"]


def open_host(host: study.Host) -> RunningHost:
    """Return the host of a study, or the pair where its halves run on two hosts.

    Raises
    ------
    UserError
        For a host that only a person can reach.
    """
    if is_split(host):
        return PairedHosts({side: _open(side_host(host, side)) for side in SIDES})
    return _open(host)


def _open(host: study.Host) -> AgentHost:
    if host.connection == "local":
        return AgentHost(host, LocalMachine(host))
    if host.connection == "ssh":
        # Fabric takes a third of a second to import, in every job.
        from kvroad.hosts.ssh import SshMachine

        return AgentHost(host, SshMachine(host))
    if host.connection == "slurm":
        return AgentHost(host, SlurmNode(host))
    raise UserError(
        f"host {host.name} is reached by hand: make a file with 'kvroad bundle', run it there, "
        "and take the folder in with 'kvroad ingest'"
    )
