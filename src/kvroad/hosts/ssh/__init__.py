"""Connection ``ssh``: OpenSSH's configuration, Fabric's connections, the agent over channels."""

from __future__ import annotations

from kvroad.errors import UserError
from kvroad.hosts.machine import Machine
from kvroad.study.fields import Host
from kvroad.study.kinds import Connection

__all__ = ["KIND"]


def _check(host: Host, where: str) -> None:
    if not host.address:
        raise UserError(f"{where}.address is missing: connection ssh needs a name or an address")


def _open(host: Host) -> Machine:
    # Fabric takes a third of a second to import, and every job looks for the connections.
    from kvroad.hosts.ssh.machine import SshMachine

    return SshMachine(host)


KIND = Connection("ssh", open=_open, check=_check)
