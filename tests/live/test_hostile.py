"""Values that a shell, a path or a file name could take for something else."""

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sshd import Sshd

from kvroad.errors import UserError
from kvroad.hosts import AgentHost, build_agent
from kvroad.hosts.local import LocalMachine
from kvroad.hosts.machine import Machine
from kvroad.hosts.ssh.machine import SshMachine
from kvroad.study import fields as study
from kvroad.study.checks import validate
from kvroad.study.compose import compose

pytestmark = pytest.mark.live

HOSTILE = [
    "a b",
    "it's",
    'say "x"',
    "$(touch {mark})",
    "`touch {mark}`",
    "x; touch {mark}; y",
    "x && touch {mark} #",
    "{{a,b}}*?[x]",
    "~",
    "-rf",
    "--help",
    "größe-日本",
    "a\\b",
    "%h%%",
]
REPOSITORY = Path(__file__).parents[2]
PROBE = "import json, os; print(json.dumps({'path': os.environ.get('HOSTILE', '')}))"


@pytest.fixture
def mark(tmp_path: Path):
    """Return the file that a value would make if it were run."""
    path = tmp_path / "hacked"
    yield path
    assert not path.exists()
    assert not list(REPOSITORY.glob("hacked*"))


@pytest.fixture(params=["local", "ssh"])
def machine_of(request: pytest.FixtureRequest, sshd: Sshd, tmp_path: Path, monkeypatch):
    """Return a function that opens a machine here or over SSH."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    # A relative work folder of the local host is one of the current folder.
    monkeypatch.chdir(tmp_path)
    sshd.account.use_in(home, "node1", sshd.port)
    opened: list[Machine] = []

    def make(**fields: object) -> AgentHost:
        given = {
            **{"python": sys.executable, "work_dir": str(tmp_path / "work")},
            **{"connect_timeout_s": 60.0, "lease_s": 60.0, **fields},
        }
        host = study.Host("h", connection=request.param, address="node1", **given)  # type: ignore[arg-type]
        machine = SshMachine(host) if request.param == "ssh" else LocalMachine(host)
        opened.append(machine)
        return AgentHost(host, machine)

    yield make
    for machine in opened:
        machine.close()


@pytest.mark.parametrize("text", HOSTILE)
def test_folders_and_files_of_a_host_are_taken_as_they_are(
    machine_of, tmp_path: Path, mark: Path, text: str
) -> None:
    name = text.format(mark=str(mark).replace("/", "_"))
    odd = tmp_path / name
    odd.mkdir()
    python = odd / "python"
    python.symlink_to(sys.executable)
    source = odd / "source"
    source.write_text("export HOSTILE=sourced\n")
    host = machine_of(work_dir=str(odd / name), python=str(python), source=str(source))
    assert host.facts()["work_dir"].startswith(str(odd / name))
    assert host.probe(PROBE) == {"path": "sourced"}
    assert host.stop(f"somebody in {text.format(mark=mark)}") == []
    assert list((odd / name).glob("agent-*.pyz"))


def refusal(act: Callable[[], object]) -> str:
    """Return the one line with which something is refused, empty where it is done."""
    try:
        act()
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("text", [t for t in HOSTILE if not t.startswith("-")])
def test_a_command_in_a_value_is_never_run(machine_of, mark: Path, text: str) -> None:
    """The values whole, so that the slashes in them mean the mark itself."""
    for field in ("work_dir", "python", "source"):
        host = machine_of(**{field: text.format(mark=mark)})
        assert "\n" not in refusal(host.facts)


@pytest.fixture(scope="module")
def smoke() -> study.Study:
    return compose(["study=smoke"], REPOSITORY / "conf")


def changed(value: Any, path: list[str], new: object) -> Any:
    """Return a copy of nested dataclasses and dicts with one value replaced."""
    if not path:
        return new
    if isinstance(value, dict):
        return {**value, path[0]: changed(value.get(path[0]), path[1:], new)}
    inner = changed(getattr(value, path[0]), path[1:], new)
    return dataclasses.replace(value, **{path[0]: inner})


@pytest.mark.parametrize(
    ("key", "taken"),
    [
        *((f"host.{k}", None) for k in ("work_dir", "source", "identity_file", "python", "env.A")),
        ("host.prefill.python", None),
        *((f"host.{k}", ["größe-日本"]) for k in ("address", "user", "bind_address")),
        ("host.decode.address", ["größe-日本"]),
        *((f"host.{k}", []) for k in ("name", "decode.name", "interfaces", "rdma_devices")),
        *((k, []) for k in ("session", "name")),
    ],
)
def test_each_field_is_taken_unchanged_or_refused_in_one_line(
    smoke: study.Study, key: str, taken: list[str] | None
) -> None:
    for text in [*HOSTILE, "a\nb", "", " "]:
        is_list = key in ("host.interfaces", "host.rdma_devices")
        made = changed(smoke, key.split("."), [text] if is_list else text)
        said = refusal(lambda: validate(made))  # noqa: B023 (called at once)
        assert "\n" not in said
        if taken is not None:
            assert bool(said) == (text not in taken), text
        elif text.isprintable() and text.strip() and not text.startswith("-"):
            assert said == ""


def test_a_launch_that_is_no_plain_name_removes_nothing(machine_of, tmp_path: Path) -> None:
    host = machine_of()
    host.facts()
    for launch in ("..", "../..", "/tmp", "", "a/b"):
        done = host.machine.call(["forget", launch], 300.0)
        assert done.returncode == 74
    assert (tmp_path / "work").exists()
    assert build_agent(tmp_path / "agent.pyz").exists()
