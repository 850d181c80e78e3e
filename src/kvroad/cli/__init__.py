"""The command ``kvroad``: what is no output of the workflow."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from kvroad.cli.parser import make_parser, parse
from kvroad.cli.status import FAILED, INTERRUPTED, USAGE, NotUnderstood
from kvroad.errors import UserError

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command in the folder that holds ``conf/`` and return the exit status.

    What a command needs is imported only once it is known which one it is.
    """
    if "_ARGCOMPLETE" in os.environ:
        from kvroad.cli.completion import complete

        complete(make_parser())
    arguments = parse(argv)
    run = importlib.import_module(f"kvroad.cli.{arguments.module}").run
    try:
        return int(run(arguments))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE if isinstance(error, NotUnderstood) else FAILED
    except KeyboardInterrupt as stop:
        print(f"stopped: {stop or 'before the end'}", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read along, such as head, has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
