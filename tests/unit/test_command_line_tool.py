"""The command line itself: help, exit statuses and completion."""

from pathlib import Path

import pytest
from commands import REPOSITORY, kvroad

from kvroad.cli.completion import suggestions
from kvroad.cli.parser import COMMANDS


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


def test_what_an_override_may_go_on_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    assert suggestions("study=sm") == ["study=smoke"]
    assert suggestions("tran") == ["transport="]
    assert suggestions("transport=[shm,ro") == ["transport=[shm,roce"]
    assert suggestions("lo", "doctor") == ["logs="]
    assert suggestions("tp", "whatif") == ["tp="]
    assert "study=h200_nvlink" in suggestions("study=", "whatif")
    assert "study=roce_vs_nvlink" not in suggestions("study=", "whatif")
