"""What ~/.ssh says of a host: ssh_config with its includes, known host keys, identity files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import paramiko

__all__ = ["identity_files", "known_hosts_files", "read_ssh_config"]

_SYSTEM_CONFIG = "/etc/ssh/ssh_config"
_DEFAULT_KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
_SYSTEM_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
_DEFAULT_KEYS = ("~/.ssh/id_rsa", "~/.ssh/id_ecdsa", "~/.ssh/id_ed25519")
_MOST_INCLUDES = 16


def read_ssh_config() -> paramiko.SSHConfig:
    """Return the user's and the system's ssh_config, the user's first as in OpenSSH.

    Includes are read in place, which paramiko leaves out.
    """
    lines: list[str] = []
    for path in (Path("~/.ssh/config").expanduser(), Path(_SYSTEM_CONFIG)):
        # What stands in front of any Host line is for every host.
        lines += ["Host *", *_lines(path, _MOST_INCLUDES)]
    return paramiko.SSHConfig.from_text("\n".join(lines))


def _lines(path: Path, depth: int) -> Iterator[str]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for line in text.splitlines():
        word, _, rest = line.strip().replace("=", " ", 1).partition(" ")
        if word.lower() != "include":
            yield line
        elif depth:
            for name in rest.replace('"', "").split():
                # ASSUME an include stands outside of Host blocks or holds blocks of its own.
                place = Path("~/.ssh").expanduser() / Path(name).expanduser()
                for found in sorted(Path("/").glob(str(place).lstrip("/"))):
                    yield from _lines(found, depth - 1)


def known_hosts_files(settings: Mapping[str, str]) -> list[str]:
    """Return the files that list host keys, for the settings of one host."""
    paths = str(settings.get("userknownhostsfile", "")).split() or list(_DEFAULT_KNOWN_HOSTS)
    paths += str(settings.get("globalknownhostsfile", "")).split() or list(_SYSTEM_KNOWN_HOSTS)
    return [path for path in map(_expanded, paths) if Path(path).is_file()]


def identity_files(named: list[str]) -> list[tuple[str, bool]]:
    """Return the key files that are tried, and whether each is encrypted."""
    paths = dict.fromkeys(map(_expanded, [*named, *_DEFAULT_KEYS]))
    return [(path, _is_encrypted(path)) for path in paths if Path(path).is_file()]


def _expanded(path: str) -> str:
    return str(Path(path).expanduser())


def _is_encrypted(path: str) -> bool:
    try:
        paramiko.PKey.from_path(path)
    except (paramiko.PasswordRequiredException, TypeError) as error:
        # cryptography, which reads the file, says TypeError for a missing passphrase.
        return "password" in str(error).lower()
    except (paramiko.SSHException, ValueError, OSError):
        return False
    return False
