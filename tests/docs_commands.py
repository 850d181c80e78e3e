"""The commands of the docs, and how a test runs them or tries them dry.

A fenced block of ``sh``, ``bash`` or ``console`` holds commands: in ``console`` the lines after
``$ ``, else every line (a backslash goes on to the next one, comments are left out). A comment
in the line above the block says how it is tried:

- nothing: it is run, and must exit with 0;
- ``<!-- dry -->``: needs what a test has not (a host, GPUs, hours): kvroad and snakemake
  commands are parsed and their overrides composed, others must be readable to a shell;
- ``<!-- exit 1 -->``: it is run, and must exit with that; ``<!-- dry exit 1 -->`` is dry;
- ``<!-- slow -->``: it is run by the slow tests only, and dry by the others.

A test of a page::

    @pytest.mark.parametrize("command", read_commands("docs/hosts.md"), ids=str)
    def test_commands_of_the_page(command, shell):   # `shell`: see make_shell
        command.check(shell)
"""

from __future__ import annotations

import os
import re
import shlex
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from kvroad.cli.parser import parse
from kvroad.cli.status import study_of
from kvroad.study.snakemake_words import check_command_line, snakemake_overrides

REPOSITORY = Path(__file__).parent.parent
_FENCE = re.compile(r"^ *(```+|~~~+) *(\w*) *$")
_MARK = re.compile(r"<!-- *((?:dry|slow)?) *(?:exit (\d+))? *-->")
_SHELLS = ("sh", "bash", "console")
# Commands whose words are no overrides of a study.
_NO_STUDY = ("compare", "completion", "whatif")


def read_files(page: str) -> dict[str, str]:
    """Return the files that a page shows, each below a line that is its path, by that path."""
    shown = r"^`((?:conf|src)/[\w/.-]+)`\n\n```(?:yaml|python)\n(.*?)^```$"
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    return dict(re.findall(shown, text, flags=re.MULTILINE | re.DOTALL))


@dataclass(frozen=True)
class DocCommand:
    """One command of a page."""

    page: str
    line: int
    text: str
    mode: str = ""
    status: int = 0

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    def check(self, shell: Shell, run_slow: bool = False) -> None:
        """Run the command, or try it dry where its block says so."""
        if self.mode == "dry" or (self.mode == "slow" and not run_slow):
            try_dry(self.text, shell.folder)
            return
        done = shell.run(self.text)
        said = f"{self}: {self.text}\n{done.stdout}\n{done.stderr}"
        assert done.returncode == self.status, said


def read_commands(page: str) -> list[DocCommand]:
    """Return the commands of a page, named by its path in the repository."""
    lines = (REPOSITORY / page).read_text(encoding="utf-8").splitlines()
    found: list[DocCommand] = []
    fence, language, mark = "", "", re.match(_MARK, "<!-- -->")
    for number, line in enumerate(lines, start=1):
        opened = _FENCE.match(line)
        if not fence and opened:
            fence, language = opened[1], opened[2]
            above = next((text for text in reversed(lines[: number - 1]) if text.strip()), "")
            mark, taken = _MARK.fullmatch(above.strip()), []
        elif fence and opened and opened[1] == fence and not opened[2]:
            fence = ""
            mode, status = mark.groups() if mark else ("", None)
            for at, text in _joined(taken) if language in _SHELLS else ():
                found.append(DocCommand(page, at, text, mode, int(status or 0)))
        elif fence:
            if language != "console":
                taken.append((number, line))
            elif line.startswith("$ "):
                taken.append((number, line[2:]))
            elif taken and taken[-1][1].endswith("\\"):
                taken.append((number, line.removeprefix("> ")))
    return found


def _joined(lines: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Join lines that a backslash continues; leave out blank lines and comments."""
    found: list[tuple[int, str]] = []
    start, text = 0, ""
    for number, line in lines:
        start = start or number
        text += line.strip()
        if text.endswith("\\"):
            text = text[:-1].rstrip() + " "
            continue
        if text and not text.startswith("#"):
            found.append((start, text))
        start, text = 0, ""
    return found


def try_dry(text: str, folder: Path) -> None:
    """Parse a command and compose what it asks for; nothing is run."""
    words = shlex.split(text, comments=True)
    words = words[: next((i for i, w in enumerate(words) if w in ("|", "&&", ">", ";")), None)]
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words.pop(0)
    if words[:2] == ["uv", "run"]:
        words = [w for w in words[2:] if w != "--no-sync"]
    assert words, f"no command: {text}"
    before = Path.cwd()
    os.chdir(folder)
    try:
        if words[0] == "kvroad":
            arguments = parse(words[1:])
            if words[1] not in _NO_STUDY:
                study_of([w for w in arguments.overrides if not w.startswith("logs=")])
        elif words[0] == "snakemake":
            check_command_line(words)
            if "--config" in words:
                entries = words[words.index("--config") + 1 :]
                pairs = dict(word.split("=", 1) for word in entries)
                study_of(snakemake_overrides(pairs, words))
    finally:
        os.chdir(before)


@dataclass(frozen=True)
class Shell:
    """A checkout in which `uv run X` is the X of this environment."""

    folder: Path
    environment: dict[str, str]

    def run(self, text: str, timeout_s: float = 300.0) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )


def make_shell(folder: Path, environment: dict[str, str], programs: Path) -> Shell:
    """Return a shell in ``folder``; ``programs`` is an empty folder for the stand-in of uv.

    ``environment`` is that of `Checkout.environment`, so that the sources of the checkout run.
    """
    script = programs / "uv"
    script.write_text(
        "#!/bin/sh\n"
        '[ "$1" = run ] || { echo "uv $1: not in a test" >&2; exit 2; }\n'
        'shift; [ "$1" = --no-sync ] && shift; exec "$@"\n'
    )
    (programs / "kvroad").write_text(f'#!/bin/sh\nexec {sys.executable} -m kvroad.cli "$@"\n')
    for name in ("uv", "kvroad"):
        (programs / name).chmod(stat.S_IRWXU)
    path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return Shell(folder, {**environment, "PATH": path})
