"""Opening an SSH connection with Fabric: checked host keys, deadlines, errors in one line."""

from __future__ import annotations

import logging
import math
import shlex
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import paramiko
from fabric import Config, Connection

from kvroad.errors import UserError
from kvroad.hosts.machine import HostLost
from kvroad.hosts.ssh.config import identity_files, known_hosts_files, read_ssh_config
from kvroad.study import fields as study

__all__ = ["connect", "deadline", "disconnect", "label_of"]

_KEEPALIVE_S = 5
# Errors are raised as well as logged; a traceback on the screen would hide the one line.
logging.getLogger("paramiko").setLevel(logging.CRITICAL)


class _UnknownKey(Exception):
    def __init__(self, name: str, key: Any) -> None:
        super().__init__(name)
        self.name = name
        self.key = key


class _Refuse:
    """A policy for paramiko, which takes whatever has this method."""

    def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
        raise _UnknownKey(hostname, key)


def label_of(host: study.Host, connection: Any | None = None) -> str:
    """Return how messages name a host: its name, and user, address and port once known."""
    if connection is None:
        return f"host {host.name} ({host.address})"
    return f"host {host.name} ({_place(connection)})"


def _place(connection: Any) -> str:
    return f"{connection.user}@{connection.host}:{connection.port}"


def connect(host: study.Host) -> Any:
    """Return an open Fabric connection whose host key, and every jump host's, is known.

    Address, user, port, identity and jump hosts come from ssh_config, where the study does
    not say otherwise.

    Raises
    ------
    UserError
        For a host key that is unknown or has changed, a login that is refused, a key that
        asks for its passphrase.
    HostLost
        When the host does not answer.
    """
    connection = _prepare(host)
    label = label_of(host, connection)
    try:
        # The jump hosts first: each has a host key to check and a time-out to keep.
        for hop in reversed(_chain(connection)):
            through = "" if hop is connection else f" to jump host {_place(hop)}"
            _open(hop, f"{label}: connect{through}")
    except BaseException:
        disconnect(connection)
        raise
    connection.transport.set_keepalive(_KEEPALIVE_S)
    return connection


def disconnect(connection: Any) -> None:
    """Close a connection and its jump hosts'; Fabric leaves one that is half open."""
    for hop in _chain(connection):
        hop.client.close()


def _prepare(host: study.Host) -> Any:
    kwargs: dict[str, Any] = {}
    if host.identity_file is not None:
        path = Path(host.identity_file).expanduser()
        if not path.is_file():
            raise UserError(f"host.identity_file: {host.identity_file} is not a file")
        kwargs["key_filename"] = [str(path)]
    try:
        connection = Connection(
            host.address,
            user=host.user,
            port=host.port,
            config=Config(ssh_config=read_ssh_config(), lazy=True),
            connect_kwargs=kwargs,
        )
        chain = _chain(connection)
    except (ValueError, KeyError, paramiko.SSHException) as error:
        raise UserError(f"{label_of(host)}: ssh_config: {' '.join(str(error).split())}") from error
    for hop in chain:
        _secure(hop, host.connect_timeout_s)
    return connection


def _chain(connection: Any) -> list[Any]:
    """Return the connection and its jump hosts, the one that is reached directly last."""
    chain = [connection]
    while isinstance(chain[-1].gateway, Connection):
        chain.append(chain[-1].gateway)
    return chain


def _secure(hop: Any, timeout_s: float) -> None:
    """Check host keys, which Fabric does not, and bound every wait of a login."""
    hop.client.set_missing_host_key_policy(_Refuse())
    for path in known_hosts_files(hop.ssh_config):
        hop.client.load_system_host_keys(path)
    alias = hop.ssh_config.get("hostkeyalias")
    if alias:
        keys = hop.client._system_host_keys
        name = hop.host if hop.port == paramiko.config.SSH_PORT else f"[{hop.host}]:{hop.port}"
        for kind, key in (keys.lookup(alias) or {}).items():
            keys.add(name, kind, key)
    named = [Path(path).expanduser() for path in hop.connect_kwargs.get("key_filename", [])]
    hop.connect_kwargs = {
        **hop.connect_kwargs,
        # OpenSSH passes over a key file of ssh_config that is not there; paramiko does not.
        "key_filename": [str(path) for path in named if path.is_file()],
        "banner_timeout": timeout_s,
        "auth_timeout": timeout_s,
        "channel_timeout": timeout_s,
    }
    hop.connect_timeout = math.ceil(timeout_s)


def _open(hop: Any, step: str) -> None:
    try:
        hop.open()
    except _UnknownKey as unknown:
        raise UserError(f"{step}: {_unknown(hop, unknown)}") from unknown
    except paramiko.BadHostKeyException as changed:
        raise UserError(f"{step}: {_changed(hop, changed)}") from changed
    except paramiko.AuthenticationException as error:
        raise UserError(f"{step}: {_refused(hop)}") from error
    except (paramiko.SSHException, ValueError, EOFError) as error:
        # paramiko tries an encrypted key as every kind of key, and says nonsense of the last.
        if hop.transport is None and _has_server_key(hop) and _locked_keys(hop):
            raise UserError(f"{step}: {_refused(hop)}") from error
        if not _has_server_key(hop):
            limit = f"host.connect_timeout_s={hop.connect_timeout:g}"
            raise HostLost(f"{step}: no SSH server answers ({limit}; {_text(error)})") from error
        raise HostLost(f"{step}: {_text(error)}") from error
    except OSError as error:
        raise HostLost(f"{step}: {_text(error)}") from error


def _has_server_key(hop: Any) -> bool:
    transport = hop.client.get_transport()
    return transport is not None and transport.host_key is not None


def _text(error: BaseException) -> str:
    if isinstance(error, socket.gaierror):
        return f"the name is not known: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


def _known_name(hop: Any) -> str:
    return str(hop.host) if hop.port == 22 else f"[{hop.host}]:{hop.port}"


def _unknown(hop: Any, unknown: _UnknownKey) -> str:
    files = known_hosts_files(hop.ssh_config)
    if hop.gateway:
        command = f"ssh {shlex.quote(hop.original_host)}"
    else:
        file = files[0] if files else "~/.ssh/known_hosts"
        command = f"ssh-keyscan -p {hop.port} {shlex.quote(hop.host)} >> {file}"
    return (
        f"the host key is not known ({unknown.key.get_name()} {unknown.key.fingerprint}); "
        f"compare it with the host's own, then: {command}"
    )


def _changed(hop: Any, changed: Any) -> str:
    name = _known_name(hop)
    file = next(
        (f for f in known_hosts_files(hop.ssh_config) if paramiko.HostKeys(f).lookup(name)), None
    )
    where = f" -f {shlex.quote(file)}" if file else ""
    return (
        f"the host key has CHANGED from {changed.expected_key.fingerprint} to "
        f"{changed.key.fingerprint}: somebody may be in between; if the host was set up anew: "
        f"ssh-keygen -R {shlex.quote(name)}{where}"
    )


def _locked_keys(hop: Any) -> list[str]:
    named = hop.connect_kwargs.get("key_filename", [])
    return [path for path, is_encrypted in identity_files(named) if is_encrypted]


def _refused(hop: Any) -> str:
    named = hop.connect_kwargs.get("key_filename", [])
    keys = identity_files(named)
    locked = [path for path, is_encrypted in keys if is_encrypted]
    n_agent = len(paramiko.Agent().get_keys())
    if locked:
        return (
            f"key {locked[0]} is encrypted and no agent offers it for user {hop.user}: "
            f"ssh-add {shlex.quote(locked[0])}"
        )
    tried = ", ".join(path for path, _ in keys) or "no key file"
    return (
        f"login as {hop.user} was refused; tried: {tried} and {n_agent} keys of the agent; "
        "set host.user or host.identity_file, or put the key into the agent with ssh-add"
    )


@contextmanager
def deadline(connection: Any, seconds: float, step: str) -> Iterator[None]:
    """Bound a step that paramiko would wait in for ever: a late one loses the connection.

    Raises
    ------
    HostLost
        With the step, when it is late or the connection breaks in it.
    """
    is_late = threading.Event()

    def give_up() -> None:
        is_late.set()
        connection.transport.close()

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (paramiko.SSHException, OSError, EOFError) as error:
        if is_late.is_set():
            raise HostLost(f"{step}: no answer within {seconds:g} s") from error
        raise HostLost(f"{step}: {_text(error)}") from error
    finally:
        timer.cancel()
