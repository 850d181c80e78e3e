"""An SSH server for machines without OpenSSH's: asyncssh_server.py PORT HOST_KEY AUTHORIZED_KEYS.

As sshd does, it serves each connection in a process of its own, starts each command with the
login shell in a session of its own, and closes the command's pipes when the connection ends.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import signal
import socket
import sys

import asyncssh

USER = pwd.getpwuid(os.getuid())
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Server(asyncssh.SSHServer):
    """Lets in this process's user, who may forward connections, as through a jump host."""

    def __init__(self, authorized_keys: str) -> None:
        self._authorized_keys = authorized_keys

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn

    def begin_auth(self, username: str) -> bool:
        if username == USER.pw_name:
            self._connection.set_authorized_keys(self._authorized_keys)
        return True

    def connection_requested(self, *_: object) -> bool:
        return True


async def run_command(client: asyncssh.SSHServerProcess[bytes]) -> None:
    peer, own = client.get_extra_info("peername"), client.get_extra_info("sockname")
    command = await asyncio.create_subprocess_exec(
        USER.pw_shell,
        *(["-c", client.command] if client.command else []),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=USER.pw_dir,
        env={
            **{"USER": USER.pw_name, "LOGNAME": USER.pw_name, "HOME": USER.pw_dir, "PATH": PATH},
            **{"SHELL": USER.pw_shell, "SSH_CONNECTION": f"{peer[0]} {peer[1]} {own[0]} {own[1]}"},
        },
        start_new_session=True,
    )
    await client.redirect(stdin=command.stdin, stdout=command.stdout, stderr=command.stderr)
    status = await command.wait()
    await client.stdout.drain()
    await client.stderr.drain()
    if status < 0:
        client.exit_with_signal(signal.Signals(-status).name.removeprefix("SIG"))
    else:
        client.exit(status)


async def serve(connected: socket.socket, host_key: str, authorized_keys: str) -> None:
    connection = await asyncssh.run_server(
        connected,
        server_factory=lambda: Server(authorized_keys),
        server_host_keys=[host_key],
        process_factory=run_command,
        sftp_factory=True,
        encoding=None,
        login_timeout=0,
    )
    await connection.wait_closed()


def main() -> None:
    port, host_key, authorized_keys = sys.argv[1:]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # leaves no zombies
    listener = socket.create_server(("127.0.0.1", int(port)), backlog=100)
    while True:
        connected, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            try:
                asyncio.run(serve(connected, host_key, authorized_keys))
            finally:
                # At once: commands see the end of their input and are waited for by nobody.
                os._exit(0)
        connected.close()


if __name__ == "__main__":
    main()
