"""Which hosts a study runs on, and which overrides are meant for which of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from kvroad.study.fields import Host, Study

__all__ = ["chosen_hosts", "merge_studies", "words_for_host"]

_FIELDS = {field.name for field in fields(Host)}
_CHOICE = "override /host"


def chosen_hosts(override: Any, study: str | None, conf_dir: Path) -> list[Any] | None:
    """Return the options of ``host`` where a list of them is chosen; else None.

    Parameters
    ----------
    override
        The value of the override of ``host``; None where there is none.
    study
        The option of ``study`` that is asked for; None: the one of ``config.yaml``.
    """
    value = override if override is not None else _of_file(study, conf_dir)
    return value if isinstance(value, list) else None


def _of_file(study: str | None, conf_dir: Path) -> Any:
    """Return what the study's file chooses as its host, as far as it can be read."""
    name = study or _choice(conf_dir / "config.yaml", "study")
    return _choice(conf_dir / "study" / f"{name}.yaml", _CHOICE)


def _choice(path: Path, key: str) -> Any:
    try:
        data = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError, UnicodeDecodeError):
        return None  # Hydra says what is wrong with it.
    entries = data.get("defaults") if isinstance(data, dict) else None
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict) and key in entry:
            return entry[key]
    return None


def words_for_host(name: str, names: Sequence[str], words: Mapping[str, str]) -> list[str]:
    """Return the overrides that make the study of one of several hosts.

    ``host.NAME.KEY`` is meant for that host and wins over ``host.KEY``, which is meant for all.

    Parameters
    ----------
    words
        Override by key, in the order in which they were given.
    """
    common: list[str] = []
    of_host: list[str] = []
    for key, word in words.items():
        if key == "host":
            continue
        owner = _owner(key, names)
        if owner is None:
            common.append(word)
        elif owner == name:
            of_host.append(word.replace(f"host.{name}.", "host.", 1))
    return [f"host={name}", *common, *of_host]


def _owner(key: str, names: Iterable[str]) -> str | None:
    # ASSUME no option of host is named like a field of a host; the field wins.
    return next(
        (n for n in names if n not in _FIELDS and key.startswith(f"host.{n}.")),
        None,
    )


def merge_studies(studies: Sequence[Study]) -> Study:
    """Return the study on all hosts of several that differ in nothing but their host."""
    if len(studies) == 1:
        return studies[0]
    return replace(studies[0], hosts=[study.host for study in studies])
