"""Raw folders over SFTP: checked against their manifest, resumed after a cut."""

from __future__ import annotations

import json
import os
import posixpath
import shutil
from pathlib import Path, PurePosixPath
from typing import Any

from kvroad.agent.manifest import MANIFEST, FileFacts, check_manifest, hash_file
from kvroad.hosts.machine import HostLost

__all__ = ["download"]

_CHUNK_BYTES = 1 << 18
_AHEAD_BYTES = 1 << 20


def download(sftp: Any, folder: str, target: Path, label: str) -> None:
    """Bring a raw folder here, whole or not at all.

    What an earlier, broken call has brought lies in ``target.partial``: files that have
    their hash stay, a shorter one is continued and fetched again if that made a wrong one.

    Raises
    ------
    HostLost
        When a file does not match the manifest that the host gives of it.
    """
    partial = target.with_name(target.name + ".partial")
    partial.mkdir(parents=True, exist_ok=True)
    manifest_bytes = _read(sftp, posixpath.join(folder, MANIFEST))
    files = _files_of(manifest_bytes, label)
    for name, facts in files.items():
        _fetch_file(sftp, posixpath.join(folder, name), partial / name, facts)
    for path in partial.rglob("*"):
        if path.is_file() and path.relative_to(partial).as_posix() not in files:
            path.unlink()
    (partial / MANIFEST).write_bytes(manifest_bytes)
    wrong = check_manifest(partial)
    if wrong:
        raise HostLost(f"{label}: raw folder {folder}: {wrong}")
    shutil.rmtree(target, ignore_errors=True)
    os.replace(partial, target)


def _files_of(manifest: bytes, label: str) -> dict[str, FileFacts]:
    try:
        files: dict[str, FileFacts] = json.loads(manifest)
    except ValueError as error:
        raise HostLost(f"{label}: no valid manifest: {error}") from error
    for name in files:
        # The names come from the host: none may lead out of the folder.
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise HostLost(f"{label}: the manifest names {name!r}, which is outside the folder")
    return files


def _fetch_file(sftp: Any, remote: str, local: Path, facts: FileFacts) -> None:
    if _is_whole(local, facts):
        return
    local.parent.mkdir(parents=True, exist_ok=True)
    is_begun = local.is_file() and local.stat().st_size < facts["bytes"]
    if is_begun:
        _copy(sftp, remote, local, local.stat().st_size, facts["bytes"])
    if not _is_whole(local, facts):
        _copy(sftp, remote, local, 0, facts["bytes"])


def _is_whole(local: Path, facts: FileFacts) -> bool:
    return (
        local.is_file()
        and local.stat().st_size == facts["bytes"]
        and hash_file(local) == facts["sha256"]
    )


def _copy(sftp: Any, remote: str, local: Path, start: int, n_bytes: int) -> None:
    with sftp.open(remote, "rb") as source, open(local, "r+b" if start else "wb") as out:
        source.seek(start)
        out.seek(start)
        for at in range(start, n_bytes, _AHEAD_BYTES):
            end = min(at + _AHEAD_BYTES, n_bytes)
            # Reads ahead, or each chunk would cost a round trip; not without a limit, since what
            # has been read ahead and not been written is lost with the connection.
            source.prefetch(end)
            while source.tell() < end and (
                chunk := source.read(min(_CHUNK_BYTES, end - source.tell()))
            ):
                out.write(chunk)


def _read(sftp: Any, remote: str) -> bytes:
    with sftp.open(remote, "rb") as file:
        return bytes(file.read())
