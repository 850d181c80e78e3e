"""Completion of the installed command, as a shell asks for it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
KVROAD = [sys.executable, "-m", "kvroad.cli"]


def ask(line: str, tmp_path: Path) -> list[str]:
    """Ask as bash's completion does, with the answer in a file."""
    answer = tmp_path / "answer"
    environment = {
        **os.environ,
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "_ARGCOMPLETE_COMP_WORDBREAKS": " \t\n\"'><=;|&(:",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "_ARGCOMPLETE_IFS": "\n",
    }
    subprocess.run(KVROAD, env=environment, cwd=REPOSITORY, check=False)
    return [word.strip() for word in answer.read_text().split("\n")]


def test_completion_as_bash_asks_for_it(tmp_path: Path) -> None:
    assert ask("kvroad do", tmp_path) == ["doctor"]
    assert "smoke" in ask("kvroad plan study=s", tmp_path)
    assert "h200_nvlink" in ask("kvroad compare h200_n", tmp_path)


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_shell_script_is_one_that_the_shell_reads(shell: str) -> None:
    words = [*KVROAD, "completion", shell]
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert "kvroad" in done.stdout
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=done.stdout, text=True, check=True)
