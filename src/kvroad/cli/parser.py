"""The command line: every command with its options, examples and exit statuses.

Imports nothing heavy: help and completion answer at once.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

__all__ = ["COMMANDS", "WHATIF_KEYS", "CommandSpec", "make_parser", "parse"]

# What `kvroad whatif` takes in place of a study's overrides.
WHATIF_KEYS = (
    *("study", "model", "prompt_tokens", "block_tokens", "tp", "regions"),
    *("road", "operation", "series", "ttft_ms"),
)

_PLAIN = "exit status: 0 done, 1 not done, 2 not understood"
_ALL = "all of it as one JSON object"


@dataclass(frozen=True)
class CommandSpec:
    """One command; the module of its name below `kvroad.cli` has the ``run`` that does it.

    Parameters
    ----------
    status
        Its exit statuses, in words.
    words
        What its words are called in the help; empty for a command that takes none.
    json
        What ``--json`` prints; empty for a command without it.
    """

    name: str
    help: str
    examples: tuple[str, ...]
    status: str = _PLAIN
    words: str = "OVERRIDE"
    json: str = ""
    add_options: Callable[[argparse.ArgumentParser], None] = lambda parser: None


def _plan_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--show-commands",
        action="store_true",
        help="argv and environment of every process, of each arm's next launch",
    )
    parser.add_argument("--launch", metavar="ID", help="with --show-commands: of this launch")
    parser.add_argument(
        "--spread-from",
        metavar="STUDY",
        help="take the spread for the power statement from this study's report",
    )


def _compare_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "studies",
        nargs="+",
        metavar="STUDY",
        help="name of a study with a report, or a folder with cells.csv and study.json; "
        "the first is what the others are compared with",
    )
    parser.add_argument(
        "--across-hosts",
        action="store_true",
        help="compare although the hosts, their GPUs or their processors differ",
    )
    parser.add_argument(
        "--metrics",
        metavar="NAME[,NAME…]",
        help="what to compare; default: pull times, and what a serving engine's client sees",
    )
    parser.add_argument(
        "--pass-inconclusive",
        action="store_true",
        help="exit with 0 in place of 3 where no regression is shown and none is ruled out",
    )


def _doctor_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="keep the raw files of the pulls here"
    )


def _output_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")


def _folder_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR")


def _shell_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh"))


COMMANDS = (
    CommandSpec(
        "doctor",
        "show which road the KV cache takes on a host, by one small pull, or in engine logs",
        (
            "kvroad doctor",
            "kvroad doctor 'transport=[shm,tcp,roce]'",
            "kvroad doctor host=ssh host.address=node1 'transport=[nvlink]' 'host.gpus=[0,1]'",
            "kvroad doctor logs=decode.log,prefill.log",
            "kvroad doctor logs=decode.log transport=roce",
        ),
        "exit status: 0 every road is the one claimed (logs without a claim: a road is shown), "
        "1 not so, 2 not understood",
        json=_ALL,
        add_options=_doctor_options,
    ),
    CommandSpec(
        "plan",
        "say what a study would run: matrix, order, time, memory, cost, roads, power",
        (
            "kvroad plan study=smoke",
            "kvroad plan study=roce_vs_nvlink host.price_per_hour=98",
            "kvroad plan study=smoke --show-commands",
            "kvroad plan study=h200_nvlink launches=8 --json",
        ),
        json=_ALL,
        add_options=_plan_options,
    ),
    CommandSpec(
        "whatif",
        "predict the pull time of another model, block size, layout or operation",
        (
            "kvroad whatif study=h200_nvlink model=llama-3.3-70b prompt_tokens=8192 tp=8",
            "kvroad whatif study=h200_nvlink 'block_tokens=[16,32,64,128]'",
            "kvroad whatif study=h200_nvlink 'regions=[null,8]' ttft_ms=350",
            "kvroad whatif study=h200_regions operation=push_sgl 'regions=[null,512,1]'",
        ),
        words="KEY=VALUE",
        json="the rows as a JSON list",
    ),
    CommandSpec(
        "compare",
        "hold studies against each other; the exit status is a regression gate",
        (
            "kvroad compare h200_nvlink h200_regions",
            "kvroad compare lastweek loopback --pass-inconclusive",
            "kvroad compare reports/driver_570 reports/driver_580 --metrics pull_ms,post_ms",
        ),
        "exit status: 0 no regression beyond the margin, 1 a regression is shown, "
        "2 not understood, 3 neither is shown, 4 nothing may be compared",
        words="",
        json=_ALL,
        add_options=_compare_options,
    ),
    CommandSpec(
        "stop",
        "end what a study left running on its hosts",
        ("kvroad stop study=smoke host=ssh host.address=node1 host.name=node1",),
    ),
    CommandSpec(
        "bundle",
        "write one file that runs the missing launches on a host without SSH",
        ("kvroad bundle study=smoke -o bundle.pyz",),
        add_options=_output_option,
    ),
    CommandSpec(
        "ingest",
        "take in the folder that such a file made, as if measured here",
        ("kvroad ingest FOLDER study=smoke",),
        add_options=_folder_argument,
    ),
    CommandSpec(
        "publish",
        "copy the report of a study to reports/published with its raw files, to commit both",
        ("kvroad publish study=smoke",),
    ),
    CommandSpec(
        "completion",
        "print a script that lets the shell complete commands, keys and options",
        ('eval "$(kvroad completion bash)"', "kvroad completion zsh > ~/.zfunc/_kvroad"),
        words="",
        add_options=_shell_argument,
    ),
)


class _Parser(argparse.ArgumentParser):
    """Ends a usage error with the command whose help says more."""

    def error(self, message: str) -> NoReturn:
        """Print one line and exit with 2."""
        print(f"error: {message} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(2)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = _Parser(
        prog="kvroad",
        description="Commands beside the workflow, run in the folder that holds conf/.",
        epilog=f"Overrides are Hydra's everywhere: study=smoke 'transport=[shm,tcp]' "
        f"host.address=node1. {_PLAIN[0].upper()}{_PLAIN[1:]}.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)
    for command in COMMANDS:
        added = commands.add_parser(
            command.name,
            help=command.help,
            description=f"{command.help[0].upper()}{command.help[1:]}.",
            epilog="\n".join(["examples:", *(f"  {e}" for e in command.examples), command.status]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_options(added)
        if command.json:
            added.add_argument("--json", action="store_true", help=command.json)
        if command.words:
            added.add_argument(
                "overrides", nargs="*", metavar=command.words, help="such as study=smoke"
            )
        added.set_defaults(module=command.name)
    return parser


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse a command line; options may stand between overrides."""
    parser = make_parser()
    arguments, rest = parser.parse_known_args(argv)
    unknown = [word for word in rest if word.startswith("-") or "overrides" not in arguments]
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if rest:
        arguments.overrides += rest
    return arguments
