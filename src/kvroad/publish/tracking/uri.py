"""Where runs go: the tracking URI resolved, checked, and fit to be shown."""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from kvroad.errors import UserError, nearest
from kvroad.evidence.redact import redact_text

__all__ = ["DEFAULT_URI", "Target", "resolve_target"]

DEFAULT_URI = "sqlite:///mlflow.db"

_SERVERS = ("http", "https")
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")


@dataclass(frozen=True)
class Target:
    """A tracking store.

    Parameters
    ----------
    uri
        Absolute URI for the client. It may hold a password: never print it.
    shown
        The same without secrets, for messages, logs and tags.
    database
        The SQLite file, if it is one.
    artifact_root
        Absolute folder for artifacts; None where a server decides.
    """

    uri: str
    shown: str
    database: Path | None
    artifact_root: Path | None

    @property
    def lock_path(self) -> Path:
        """File whose lock makes one process of this machine write at a time."""
        if self.database is not None:
            return self.database.with_name(f"{self.database.name}.lock")
        digest = hashlib.sha256(self.uri.encode()).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"kvroad-tracking-{os.getuid()}-{digest}.lock"

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port of a server or a database server; None where there is no network."""
        parts = urlsplit(self.uri)
        ports = {"http": 80, "https": 443, "postgresql": 5432, "mysql": 3306, "mssql": 1433}
        if self.database is not None or not parts.hostname:
            return None
        return parts.hostname, parts.port or ports[_kind(parts.scheme)]


def resolve_target(configured: str | None, root: Path) -> Target:
    """Resolve the tracking URI: ``MLFLOW_TRACKING_URI``, else ``configured``, else the default.

    Relative SQLite paths, and the artifacts of every database, are taken from ``root``.

    Raises
    ------
    UserError
        When the URI names a store that cannot be used.
    """
    given = os.environ.get("MLFLOW_TRACKING_URI", "").strip()
    uri, origin = (given, "MLFLOW_TRACKING_URI") if given else (configured or "", "tracking.uri")
    uri = uri or DEFAULT_URI
    shown = redact_text(uri)
    scheme = uri.partition(":")[0] if ":" in uri else ""
    kind = _kind(scheme)
    if kind in ("", "file"):
        raise UserError(
            f"{origin} {shown!r}: needs a database such as {DEFAULT_URI} or a server such as"
            " http://127.0.0.1:5000; MLflow has closed its file store"
        )
    if kind not in (*_SERVERS, *_DATABASES):
        allowed = ", ".join((*_SERVERS, *_DATABASES))
        hint = nearest(kind, (*_SERVERS, *_DATABASES))
        raise UserError(f"{origin} {shown!r}: unknown kind {kind!r}, allowed are {allowed}{hint}")
    if kind == "sqlite":
        return _sqlite(uri, scheme, root, f"{origin} {shown!r}")
    try:
        host, _ = urlsplit(uri).hostname, urlsplit(uri).port
    except ValueError:
        raise UserError(f"{origin} {shown!r}: host or port cannot be read") from None
    if kind in _SERVERS and not host:
        raise UserError(f"{origin} {shown!r}: needs a host, as in http://127.0.0.1:5000")
    return Target(uri, shown, None, None if kind in _SERVERS else _artifacts(root))


def _kind(scheme: str) -> str:
    return scheme.partition("+")[0].lower()


def _artifacts(folder: Path) -> Path:
    return folder.resolve() / "mlartifacts"


def _sqlite(uri: str, scheme: str, root: Path, where: str) -> Target:
    path, mark, query = uri.removeprefix(f"{scheme}:").partition("?")
    if not path.startswith("///") or path in ("///", "///:memory:") or path.endswith("/"):
        raise UserError(f"{where}: needs a file, as in {DEFAULT_URI} or sqlite:////data/mlflow.db")
    database = (root / path.removeprefix("///")).resolve()
    absolute = f"{scheme}:///{database}{mark}{query}"
    return Target(absolute, absolute, database, _artifacts(database.parent))
