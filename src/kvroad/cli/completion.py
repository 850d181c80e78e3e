"""``kvroad completion``, and the answers to a shell that completes a command line."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import argcomplete
from argcomplete.shell_integration import shellcode

from kvroad.analysis.saved_study import study_names
from kvroad.cli.parser import WHATIF_KEYS
from kvroad.cli.status import CONF, DONE, REPORTS, RESULTS
from kvroad.study.typed import config_keys

__all__ = ["complete", "run", "suggestions"]


def run(arguments: argparse.Namespace) -> int:
    """Print the shell's part of completion."""
    print(shellcode(["kvroad"], shell=arguments.shell))
    return DONE


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer the shell and exit."""
    for action in _actions(parser):
        if action.dest == "overrides":
            action.completer = _overrides  # type: ignore[attr-defined]
        elif action.dest in ("studies", "spread_from"):
            action.completer = _studies  # type: ignore[attr-defined]
    argcomplete.autocomplete(parser)


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _actions(below)


def _studies(prefix: str, **_: Any) -> list[str]:
    return [name for name in study_names(REPORTS, RESULTS) if name.startswith(prefix)]


def _overrides(prefix: str, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    return suggestions(prefix, getattr(parsed_args, "module", ""))


def suggestions(prefix: str, command: str = "") -> list[str]:
    """Return what an override that begins so may go on to: keys, or options of a group."""
    key, equals, value = prefix.partition("=")
    if not equals:
        known = WHATIF_KEYS if command == "whatif" else config_keys()
        extra = ("logs",) if command == "doctor" else ()
        return [f"{name}=" for name in (*known, *extra) if name.startswith(key)]
    if key == "study" and command == "whatif":
        options = study_names(REPORTS, RESULTS)
    else:
        options = sorted(path.stem for path in (CONF / key).glob("*.yaml"))
    # In a list, the last entry is the one being typed.
    head, bracket, last = value.rpartition("," if "," in value else "[")
    return [f"{key}={head}{bracket}{name}" for name in options if name.startswith(last)]
