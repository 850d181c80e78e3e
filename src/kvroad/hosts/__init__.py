"""Where plans run: a connection a file, or a folder where it takes a library; pairs of hosts."""

from __future__ import annotations

from kvroad.hosts.agent_file import build_agent
from kvroad.hosts.agent_host import AgentHost, RunningHost
from kvroad.hosts.machine import HostLost
from kvroad.hosts.pair import PairedHosts
from kvroad.study.fields import Host
from kvroad.study.kinds import CONNECTIONS
from kvroad.study.sides import SIDES, is_split, side_host

__all__ = ["AgentHost", "HostLost", "RunningHost", "build_agent", "open_host"]


def open_host(host: Host) -> RunningHost:
    """Return the host of a study, or the pair where its halves run on two hosts.

    Raises
    ------
    UserError
        For a host that cannot be opened, such as one that only a person can reach.
    """
    if is_split(host):
        return PairedHosts({side: _open(side_host(host, side)) for side in SIDES})
    return _open(host)


def _open(host: Host) -> AgentHost:
    return AgentHost(host, CONNECTIONS[host.connection].open(host))
