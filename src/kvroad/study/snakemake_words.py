"""From Snakemake's command line and ``config`` to Hydra overrides, as they were written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvroad.errors import UserError
from kvroad.study.typed import config_keys, shown

__all__ = ["check_command_line", "snakemake_overrides"]

# The reserved key of Snakemake's config that carries overrides of any kind.
_ANY = "hydra"
_CONFIG_OPTIONS = ("--config", "-C")
_OTHER_KEY_VALUE_OPTIONS = (
    *("--resources", "--res", "--default-resources", "--default-res", "--target-jobs"),
    *("--set-threads", "--set-resources", "--set-resource-scopes", "--set-scatter"),
    *("--groups", "--group-components"),
)


def check_command_line(argv: Sequence[str]) -> None:
    """Refuse what Snakemake would drop or take for a file: a second --config, a bare override.

    Raises
    ------
    UserError
        In one line, with the command line that was meant.
    """
    sections = _sections(argv)
    entries = [tokens for option, tokens in sections if option in _CONFIG_OPTIONS]
    if len(entries) > 1:
        meant = " ".join(_quoted_for_shell(token) for tokens in entries for token in tokens)
        raise UserError(
            f"--config is given {len(entries)} times and Snakemake keeps only the last; "
            f"give it once: --config {meant}"
        )
    for option, tokens in sections:
        if option in _CONFIG_OPTIONS or option in _OTHER_KEY_VALUE_OPTIONS:
            continue
        for token in tokens:
            found = re.match(r"([+~]*)(\w+)(\.[^=/]*)?=", token)
            if found is None or found[2] not in (*config_keys(), _ANY):
                continue
            is_simple = not (found[1] or found[3])
            meant = token if is_simple else f"{_ANY}={token}"
            raise UserError(
                f"{' '.join(token.split())} is an override and needs --config before it, "
                f"after all targets: --config {_quoted_for_shell(meant)}"
            )


def snakemake_overrides(config: Mapping[str, object], argv: Sequence[str] = ()) -> list[str]:
    """Return Snakemake's ``config`` as Hydra overrides, those of the key ``hydra`` last.

    Parameters
    ----------
    argv
        Snakemake's command line. What it says of a key is taken from here, because ``config``
        has it changed: ``010`` is 10, quotes at either end are gone, all after a blank and ``#``
        too. A script has no such command line: give it ``{"hydra": overrides}`` as its config.
    """
    written = _written(argv)
    overrides: list[str] = []
    for key, value in config.items():
        if key == _ANY:
            continue
        if key in written:
            overrides.append(_top_level(key, written[key]))
        else:
            overrides.extend(_from_value(key, value))
    return [*overrides, *_any_overrides(config.get(_ANY), written.get(_ANY))]


def _sections(argv: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Return each option with the words that follow it; targets in front have the option ''."""
    sections: list[tuple[str, list[str]]] = [("", [])]
    for token in argv:
        if token == "--":
            sections.append(("", []))
        elif token.startswith("-C") and len(token) > 2:
            sections.append(("-C", [token[2:]]))
        elif token.startswith("-") and token != "-":
            option, equals, value = token.partition("=")
            sections.append((option, [value] if equals else []))
        else:
            sections[-1][1].append(token)
    return sections


def _written(argv: Sequence[str]) -> dict[str, str]:
    entries = [tokens for option, tokens in _sections(argv) if option in _CONFIG_OPTIONS]
    pairs = (token.split("=", 1) for token in (entries[-1] if entries else []) if "=" in token)
    return {key: text for key, text in pairs}


def _quoted_for_shell(token: str) -> str:
    token = " ".join(token.split())
    return token if re.fullmatch(r"[\w./=+,-]+", token) else "'" + token.replace("'", "'\\''") + "'"


def _top_level(key: str, text: str) -> str:
    # Lists, mappings, quotes and commas mean what Hydra means by them.
    is_hydra = text[:1] in ("", "[", "{", "'", '"') or "," in text or text == "null"
    return f"{key}={text if is_hydra else _hydra_text(text)}"


def _from_value(key: str, value: Any, depth: int = 0) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _from_value(f"{key}.{name}", inner, depth + 1)
    elif depth == 0 and isinstance(value, str):
        yield _top_level(key, value)
    elif depth == 0 and value is None:
        yield f"{key}="
    else:
        yield f"{key}={_hydra_text(value)}"


def _hydra_text(value: Any) -> str:
    """Return a value as Hydra reads it back: the same text, the same number, the same list."""
    if value is None or isinstance(value, bool):
        return shown(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{k}:{_hydra_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_hydra_text(item) for item in value) + "]"
    text = str(value)
    is_number = re.fullmatch(r"0|-?[1-9]\d*", text) or not isinstance(value, str)
    is_word = re.fullmatch(r"[A-Za-z_][\w./+@-]*", text, re.ASCII)
    if is_number or (is_word and text.lower() not in ("null", "true", "false", "inf", "nan")):
        return text
    # OmegaConf would resolve ${...}; a backslash before it, itself doubled, keeps the text.
    kept = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)
    # Hydra undoubles backslashes only before a quote, the closing one included.
    return "'" + re.sub(r"(\\*)('|$)", _escaped, kept) + "'"


def _escaped(found: re.Match[str]) -> str:
    return found[1] * 2 + ("\\'" if found[2] else "")


def _any_overrides(value: Any, written: str | None) -> list[str]:
    if value is None and written is None:
        return []
    if isinstance(value, list):
        return [str(item) for item in value]
    text = value if written is None else written
    if not isinstance(text, str) or not text.strip():
        raise UserError(
            f"{_ANY}: {text!r} is neither overrides nor a list of them; "
            f"write --config '{_ANY}=engine.num_threads=0 seed=2'"
        )
    return _split(text)


def _split(text: str) -> list[str]:
    """Split on blanks that are outside quotes and brackets; quotes stay, Hydra reads them."""
    words, word, quote, depth, is_escaped = [], "", "", 0, False
    for char in text:
        if char.isspace() and not quote and depth == 0:
            words.append(word)
            word = ""
            continue
        word += char
        if quote:
            quote = "" if char == quote and not is_escaped else quote
            is_escaped = char == "\\" and not is_escaped
        elif char in "\"'":
            quote, is_escaped = char, False
        else:
            depth += (char in "[{(") - (char in ")}]")
    if quote or depth:
        what = f"the quote {quote}" if quote else "a bracket"
        raise UserError(
            f"{_ANY}={' '.join(text.split())}: {what} has no partner; close it or leave it out"
        )
    return [word for word in [*words, word] if word]
