"""Runs the command line in this process, at the root of the repository or elsewhere."""

import contextlib
import io
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvroad.cli import main

REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class Done:
    status: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)


def kvroad(*words: str, folder: Path = REPOSITORY) -> Done:
    out, err = io.StringIO(), io.StringIO()
    with _inside(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main(words)
        except SystemExit as end:
            status = int(end.code or 0)
    return Done(status, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
