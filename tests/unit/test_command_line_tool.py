"""The command line itself: help, exit statuses, what it imports, and completion."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import REPOSITORY, kvroad

from kvroad.cli.completion import suggestions
from kvroad.cli.parser import COMMANDS

HEAVY = ("pandas", "scipy", "hydra", "omegaconf", "mlflow", "fabric", "matplotlib", "snakemake")


@pytest.mark.parametrize("name", [command.name for command in COMMANDS])
def test_help_has_examples_and_exit_statuses(name: str) -> None:
    done = kvroad(name, "--help")
    assert done.status == 0
    assert "examples:\n  " in done.out
    assert "exit status: 0 " in done.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "required"),
        (("plann",), "invalid choice: 'plann'"),
        (("plan", "--jsn"), "unrecognized arguments: --jsn"),
        (("bundle", "study=smoke"), "-o/--output"),
        (("compare", "aa", "soft_roce", "--metrics"), "expected one argument"),
        (("stop", "study=smok"), "did you mean 'smoke'?"),
        (
            ("doctor", "host=[local,ssh]", "host.ssh.address=node1", "launches=4"),
            "doctor examines one host at a time; these are several: local, ssh",
        ),
    ],
)
def test_words_that_cannot_be_meant_end_in_one_line_and_2(
    words: tuple[str, ...], said: str
) -> None:
    done = kvroad(*words)
    assert (done.status, done.out) == (2, "")
    assert said in done.err
    assert done.err.count("\n") == 1


def test_options_may_stand_between_overrides(tmp_path: Path) -> None:
    target = tmp_path / "bundle.pyz"
    words = ("bundle", "study=smoke", "-o", str(target), "host=h200_x2", "transport=[tcp]")
    # The host has GPUs, and the study's memory is the host's: any bundle will do.
    assert kvroad(*words).status == 0
    assert target.exists()


def test_help_and_completion_import_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from kvroad.cli import main\n"
        "try: main(['plan', '--help'])\n"
        "except SystemExit: pass\n"
        "from kvroad.cli.completion import suggestions\n"
        "suggestions('study=')\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_what_an_override_may_go_on_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    assert suggestions("study=sm") == ["study=smoke"]
    assert suggestions("tran") == ["transport="]
    assert suggestions("transport=[shm,ro") == ["transport=[shm,roce"]
    assert suggestions("lo", "doctor") == ["logs="]
    assert suggestions("tp", "whatif") == ["tp="]
    assert "study=h200_nvlink" in suggestions("study=", "whatif")
    assert "study=roce_vs_nvlink" not in suggestions("study=", "whatif")


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
    subprocess.run(
        [sys.executable, "-m", "kvroad.cli"], env=environment, cwd=REPOSITORY, check=False
    )
    return [word.strip() for word in answer.read_text().split("\n")]


def test_completion_as_bash_asks_for_it(tmp_path: Path) -> None:
    assert ask("kvroad do", tmp_path) == ["doctor"]
    assert "smoke" in ask("kvroad plan study=s", tmp_path)
    assert "h200_nvlink" in ask("kvroad compare h200_n", tmp_path)


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_shell_script_is_one_that_the_shell_reads(shell: str, tmp_path: Path) -> None:
    done = kvroad("completion", shell)
    assert done.status == 0
    assert "kvroad" in done.out
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=done.out, text=True, check=True)
