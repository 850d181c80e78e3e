"""What a study is called: folder names, and what in it is not to be shown."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from kvroad.study.fields import Host, Study
from kvroad.study.setting import plain_of, settings_of

__all__ = ["PUBLISHED", "resolved", "study_slug", "without_password"]


def without_password(text: str) -> str:
    """Return the text with the password of every URI in it masked."""
    return re.sub(r"(://[^:/@\s]*):[^@\s]*@", r"\1:***@", text)


def resolved(study: Study) -> dict[str, Any]:
    """Return the study as plain dicts and lists; a password in the tracking URI is masked."""
    plain: dict[str, Any] = plain_of(study)
    plain["tracking"]["uri"] = without_password(study.tracking.uri)
    if not study.hosts:
        del plain["hosts"]
    return plain


# The folder among those of reports that holds the committed ones; no study has its name.
PUBLISHED = "published"
_HOW_TO_REACH = [name for name, setting in settings_of(Host).items() if setting.reaches]
_CHANGES_NO_RESULT = re.compile(
    rf"\+*(study=|tracking[.=]|host\.([\w-]+\.){{0,2}}({'|'.join(_HOW_TO_REACH)})=|"
    r"host\.([\w-]+\.){0,2}serving[.=])"
)


def study_slug(study: Study) -> str:
    """Return a folder name: the study's, then ``+`` and each override in alphabetical order.

    ``study=`` is the name itself; tracking and the way to a host change no result: none of
    them is spelled out. A short hash follows where a character was replaced, the name was
    cut, or ``+`` is ambiguous.
    """
    overrides = sorted(o for o in study.overrides if not _CHANGES_NO_RESULT.match(o))
    exact = "+".join([study.name, *overrides])
    safe = re.sub(r"[^A-Za-z0-9._+=,\[\]-]", "_", exact)
    if safe == exact and len(safe) <= 100 and not any("+" in o for o in overrides):
        return safe
    return f"{safe[:89]}-{hashlib.sha256(exact.encode()).hexdigest()[:10]}"
