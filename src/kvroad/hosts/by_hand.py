"""Connection ``hand``: plans go out in one runnable file, raw folders come back in a folder."""

from __future__ import annotations

from typing import NoReturn

from kvroad.errors import UserError
from kvroad.study.fields import Host
from kvroad.study.kinds import Connection

__all__ = ["KIND"]


def _refuse(host: Host) -> NoReturn:
    raise UserError(
        f"host {host.name} is reached by hand: make a file with 'kvroad bundle', run it there, "
        "and take the folder in with 'kvroad ingest'"
    )


KIND = Connection("hand", open=_refuse, is_by_hand=True)
