"""Names and texts that MLflow accepts.

Limits and legal characters are those of ``mlflow/utils/validation.py``, MLflow 3.17.2.
"""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import quote, unquote

__all__ = [
    "NAME_LIMIT",
    "PARAM_LIMIT",
    "TAG_LIMIT",
    "clip",
    "legal_name",
    "long_names",
    "original_name",
]

NAME_LIMIT = 250
PARAM_LIMIT = 6000
TAG_LIMIT = 8000

_DIGEST = 16


@lru_cache(maxsize=4096)
def legal_name(name: str) -> str:
    """Return a name that MLflow takes for a metric, param or tag; equal names stay equal.

    ASCII letters, digits, ``_ - . / `` and blanks stay; other bytes become ``:XX``, percent
    encoding with a colon, which `original_name` takes back. A name above 250 characters is
    cut and ends in a digest of the whole.

    Raises
    ------
    ValueError
        When the name is empty.
    """
    if not name:
        raise ValueError("a metric, param or tag needs a name")
    legal = _escape(name, safe=" /")
    if posixpath.normpath(legal) != legal or legal.startswith(("/", "..", ".")):
        # MLflow refuses names that resolve to another one when taken as a path.
        legal = _escape(name, safe=" ")
        legal = f":2E{legal[1:]}" if legal.startswith(".") else legal
    if len(legal) <= NAME_LIMIT:
        return legal
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST]
    return f"{legal[: NAME_LIMIT - _DIGEST - 1]}.{digest}"


def original_name(legal: str) -> str:
    """Return the name that `legal_name` was given, where it was not cut."""
    return unquote(legal.replace(":", "%"))


def long_names(names: Iterable[str]) -> dict[str, str]:
    """Return the names that `legal_name` cuts, by the digest that their legal name ends in."""
    legal = {name: legal_name(name) for name in names}
    return {short[-_DIGEST:]: name for name, short in legal.items() if original_name(short) != name}


def clip(text: str, limit: int) -> str:
    """Return text of at most ``limit`` characters, a cut marked by an ellipsis.

    Lone surrogates and NUL, which databases refuse, are replaced.
    """
    clean = text.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
    return clean if len(clean) <= limit else f"{clean[: limit - 1]}\N{HORIZONTAL ELLIPSIS}"


def _escape(name: str, safe: str) -> str:
    return quote(name, safe=safe).replace("~", "%7E").replace("%", ":")
