"""The reader of the docs' commands itself; what it reads is tested page by page."""

import subprocess
from pathlib import Path

import docs_commands
import pytest
from docs_commands import DocCommand, Shell, make_shell, read_commands, try_dry

from kvroad.errors import UserError

PAGE = """\
# A page

```sh
echo one   # said
# only said

uv run snakemake --cores 1 all \\
  --config study=smoke
```

<!-- dry exit 3 -->

```console
$ false
no command
$ kvroad plan \\
> study=smoke
```

```
kvroad nothing of this
```

~~~bash
true
~~~
"""


def test_commands_of_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "page.md").write_text(PAGE)
    monkeypatch.setattr(docs_commands, "REPOSITORY", tmp_path)
    assert read_commands("page.md") == [
        DocCommand("page.md", 4, "echo one   # said"),
        DocCommand("page.md", 7, "uv run snakemake --cores 1 all --config study=smoke"),
        DocCommand("page.md", 14, "false", "dry", 3),
        DocCommand("page.md", 16, "kvroad plan study=smoke", "dry", 3),
        DocCommand("page.md", 25, "true"),
    ]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    (tmp_path / "bin").mkdir()
    return make_shell(tmp_path, {"HOME": str(tmp_path)}, tmp_path / "bin")


def test_a_command_is_run_and_its_status_checked(shell: Shell) -> None:
    DocCommand("p", 1, "uv run --no-sync sh -c 'exit 3' && true", status=3).check(shell)
    DocCommand("p", 1, "uv run python -c 'import kvroad'").check(shell)
    with pytest.raises(AssertionError, match="p:1: false"):
        DocCommand("p", 1, "false").check(shell)
    DocCommand("p", 1, "false", "slow").check(shell)
    with pytest.raises(AssertionError):
        DocCommand("p", 1, "false", "slow").check(shell, run_slow=True)


@pytest.mark.parametrize(
    "text",
    [
        "uv run snakemake --cores 1 all --config study=smoke 'transport=[shm,tcp]'",
        "kvroad stop study=smoke host=ssh host.address=node1",
        "FOO=1 uv run kvroad plan study=smoke --json | jq .",
        "scp bundle.pyz node1:",
    ],
)
def test_dry(text: str) -> None:
    try_dry(text, docs_commands.REPOSITORY)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("kvroad stop study=smok", UserError),
        ("kvroad stopp", SystemExit),
        ("uv run snakemake all --config study=smoke 'transport=[shn]'", UserError),
        ("echo 'open", ValueError),
    ],
)
def test_dry_refuses(text: str, error: type[BaseException]) -> None:
    with pytest.raises(error):
        try_dry(text, docs_commands.REPOSITORY)


def test_the_stand_in_of_uv_runs_nothing_else(shell: Shell) -> None:
    done: subprocess.CompletedProcess[str] = shell.run("uv sync")
    assert done.returncode == 2
