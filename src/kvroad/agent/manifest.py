"""The manifest that ends a raw folder: sizes and hashes, written last."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TypedDict

__all__ = ["MANIFEST", "FileFacts", "check_manifest", "hash_file", "write_manifest"]

MANIFEST = "manifest.json"


class FileFacts(TypedDict):
    """What a manifest says of one file, by its path in the folder."""

    bytes: int
    sha256: str


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def write_manifest(folder: Path) -> None:
    """List every file below the folder with its size and hash; the write is atomic."""
    files: dict[str, FileFacts] = {
        str(path.relative_to(folder)): {"bytes": path.stat().st_size, "sha256": hash_file(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    }
    temporary = folder / (MANIFEST + ".tmp")
    with open(temporary, "w") as file:
        json.dump(files, file, indent=1, sort_keys=True)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, folder / MANIFEST)


def check_manifest(folder: Path) -> str | None:
    """Return what is wrong with a raw folder in one line, or None when it is whole."""
    try:
        files: dict[str, FileFacts] = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError) as error:
        return f"no valid manifest: {error}"
    for name, facts in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != facts["bytes"]:
            return f"{name} has {path.stat().st_size} bytes, not {facts['bytes']}"
        if hash_file(path) != facts["sha256"]:
            return f"{name} has another hash than the manifest says"
    return None
