"""Take secrets out of whatever is about to be written: environments, text, URIs, JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

__all__ = ["REDACTED", "is_secret_name", "redact", "redact_env", "redact_text", "redact_uri"]

REDACTED = "<redacted>"

# "prompt_tokens" and "TOKENIZERS_PARALLELISM" are no secrets, "HF_TOKEN" is one.
_NAME = (
    r"TOKEN(?!S|IZ)|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|AUTHORIZATION"
    r"|API[_-]?KEY|ACCESS[_-]?KEY|PRIVATE[_-]?KEY|ENCRYPTION[_-]?KEY|[A-Z0-9]_PWD\b|COOKIE"
)
_SECRET_NAME = re.compile(_NAME, re.IGNORECASE)
_WORD = rf"[\w.-]*(?:{_NAME})[\w.-]*"
_URI = re.compile(r"(\b[A-Za-z][A-Za-z0-9+.-]*://[^\s/:@\"'<>]*):[^\s/\"'<>]+@")
_JSON_PAIR = re.compile(rf'("{_WORD}"\s*:\s*)(?:"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*)', re.IGNORECASE)
_QUOTED_FLAG = re.compile(rf'("--?{_WORD}"\s*,\s*)"(?:[^"\\]|\\.)*"', re.IGNORECASE)
_FLAG = re.compile(rf"(?<![\w-])(--?{_WORD}[ =])(?!-)[^\s\"'\\,;]+", re.IGNORECASE)
# The value may be JSON within JSON (a backslash before the quote); an opening bracket, null
# or a truth value stays, or the JSON around it would break.
_ASSIGNMENT = re.compile(
    rf"(?<![\w-])({_WORD}\\?[\"']?\s?[=:]\s?\\?[\"']?)(?!//|null\b|true\b|false\b|None\b)"
    r"[^\s\"'\\,;&\[{}\]]+",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b((?:Bearer|Basic)\s+)[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)
_SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|sk-[A-Za-z0-9_-]{16,}|nvapi-[\w-]{16,}|AKIA[A-Z0-9]{12,}|xox[abprs]-[\w-]{10,})"
)


def is_secret_name(name: str) -> bool:
    """Return whether a variable, option or key of this name holds a secret."""
    return _SECRET_NAME.search(name) is not None


def redact_uri(uri: str) -> str:
    """Return the URI with its password replaced; user, host and path stay."""
    return _URI.sub(rf"\1:{REDACTED}@", uri)


def redact_env(env: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of an environment without secret values.

    A value goes by the name of its variable; what stays is searched like any text.
    """
    return {k: REDACTED if is_secret_name(k) else redact_text(v) for k, v in env.items()}


def redact_text(text: str) -> str:
    """Return text without the secrets that can be told by name or by shape.

    Known are ``NAME=value``, ``--name value``, ``"name": "value"``, passwords in URIs,
    bearer tokens and the tokens of common services. JSON stays valid JSON.
    """
    text = redact_uri(text)
    text = _BEARER.sub(rf"\1{REDACTED}", text)
    text = _SHAPES.sub(REDACTED, text)
    if not is_secret_name(text):
        return text
    text = _JSON_PAIR.sub(rf'\1"{REDACTED}"', text)
    text = _QUOTED_FLAG.sub(rf'\1"{REDACTED}"', text)
    text = _FLAG.sub(rf"\1{REDACTED}", text)
    return _ASSIGNMENT.sub(rf"\1{REDACTED}", text)


def redact(value: Any) -> Any:
    """Return JSON-like data without secrets: by key name in mappings, else by text."""
    if isinstance(value, Mapping):
        return {
            k: REDACTED if is_secret_name(str(k)) and isinstance(v, str) else redact(v)
            for k, v in value.items()
        }
    if isinstance(value, list | tuple):
        return [redact(v) for v in value]
    return redact_text(value) if isinstance(value, str) else value
