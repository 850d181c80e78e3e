"""The agent as one runnable file: what a host needs besides Python and NIXL."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

from kvroad.files import write_atomic

__all__ = ["agent_bytes", "agent_name", "build_agent"]

# What the agent is made of; standard library only, as the import contract checks.
_AGENT_PARTS = ("__init__.py", "plan.py", "registry.py", "agent", "evidence")
# An older Python must get as far as this sentence: no newer syntax here.
_MAIN = """\
import sys

if sys.version_info < (3, 10):
    sys.exit("Python %s is too old: 3.10 or newer is needed" % sys.version.split()[0])
from {module} import run_and_exit

run_and_exit()
"""
# Two builds of the same source are the same bytes.
_DATE = (1980, 1, 1, 0, 0, 0)


def agent_bytes(
    module: str = "kvroad.agent.__main__", extra: Mapping[str, str] | None = None
) -> bytes:
    """Return a zip archive that Python runs; ``module`` is what it starts.

    Parameters
    ----------
    extra
        Further text files, by name.
    """
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        _add(archive, "__main__.py", _MAIN.format(module=module))
        for path in _sources():
            name = path.relative_to(_package().parent).as_posix()
            _add(archive, name, path.read_text(encoding="utf-8"))
        for name, text in (extra or {}).items():
            _add(archive, name, text)
    return out.getvalue()


def agent_name(data: bytes) -> str:
    """Return a file name that changes with the agent's content."""
    return f"agent-{hashlib.sha256(data).hexdigest()[:16]}.pyz"


def build_agent(path: Path) -> Path:
    """Write the agent as one runnable file and return its path."""
    return write_atomic(path, lambda file: file.write_bytes(agent_bytes()))


def _package() -> Path:
    spec = importlib.util.find_spec("kvroad")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _sources() -> list[Path]:
    found: list[Path] = []
    for part in _AGENT_PARTS:
        path = _package() / part
        found += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return found


def _add(archive: zipfile.ZipFile, name: str, text: str) -> None:
    entry = zipfile.ZipInfo(name, _DATE)
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, text)
