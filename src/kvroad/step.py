"""What the workflow's scripts share: how a step reports, and what makes it run again."""

from __future__ import annotations

import contextlib
import hashlib
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

from kvroad.errors import UserError

__all__ = ["module_digest", "say_to", "step"]

_PACKAGE = Path(__file__).parent


@contextlib.contextmanager
def step(log: str) -> Iterator[Callable[[str], None]]:
    """Run a script's one call; yields a function that says a line on screen and in the log.

    A `UserError` ends the job with its one line; anything else leaves its traceback in
    the log, and its last line on screen.
    """
    path = Path(log)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    say = say_to(path)

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, UserError):
            say(f"error: {error}")
            return
        if isinstance(error, KeyboardInterrupt):
            say(f"stopped: {str(error) or 'before the end'}; the same command goes on from here")
            return
        with open(path, "a") as file:
            traceback.print_exception(kind, error, trace, file=file)
        print(f"error: {kind.__name__}: {error} (log: {log})", file=sys.stderr)

    sys.excepthook = show
    yield say


def say_to(path: Path) -> Callable[[str], None]:
    """Return a function that prints a line to standard error and appends it to a file."""

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)
        with open(path, "a") as file:
            file.write(line + "\n")

    return say


def module_digest(*names: str) -> str:
    """Return a hash over the source of modules or packages of kvroad.

    Analysis rules carry it as a parameter, so that an edit of theirs, and of nothing
    else, makes them run again.
    """
    digest = hashlib.sha256()
    for name in names:
        place = _PACKAGE / name
        files = sorted(place.rglob("*")) if place.is_dir() else [place.with_suffix(".py")]
        for file in files:
            if place.is_dir() and (not file.is_file() or "__pycache__" in file.parts):
                continue
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]
