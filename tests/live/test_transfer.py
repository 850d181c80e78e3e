"""Raw folders over SFTP: whole or not at all, and nothing twice."""

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from proxy import Proxy
from sshd import Sshd
from waiting import wait_until

from kvroad.agent.manifest import check_manifest, write_manifest
from kvroad.hosts import HostLost
from kvroad.hosts.ssh.machine import SshMachine
from kvroad.study import fields as study

pytestmark = pytest.mark.live
BIG = 3 << 20


@pytest.fixture
def proxy(sshd: Sshd):
    made = Proxy(sshd.port)
    sshd.accept_on(made.port)
    yield made
    made.close()


@pytest.fixture
def machine(sshd: Sshd, proxy: Proxy, tmp_path: Path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    sshd.account.use_in(home, "node1", proxy.port)
    host = study.Host(
        *("h", "ssh", "node1"),
        python=sys.executable,
        work_dir=str(tmp_path / "work"),
        connect_timeout_s=60.0,
        lease_s=60.0,
    )
    opened = SshMachine(host)
    assert not opened.has_raw_folder("launch")
    yield opened
    opened.close()


@pytest.fixture
def remote(machine: SshMachine) -> Path:
    """Return a raw folder on the host: a large file, a small one, one in a folder, an empty one."""
    folder = Path(machine._folder("launch"))
    (folder / "replay").mkdir(parents=True)
    (folder / "big.log").write_bytes(bytes(range(256)) * (BIG // 256))
    (folder / "events.jsonl").write_text("{}\n")
    (folder / "replay" / "pulls.py").write_text("x = 1\n")
    (folder / "empty.log").touch()
    write_manifest(folder)
    return folder


def fetched(machine: SshMachine, proxy: Proxy, target: Path) -> int:
    """Fetch the folder, check it, and return how many bytes came over the network."""
    at = proxy.bytes_to_client
    machine.fetch("launch", target)
    assert check_manifest(target) is None
    assert not target.with_name(target.name + ".partial").exists()
    return proxy.bytes_to_client - at


def test_a_folder_arrives_as_it_is_and_stays_on_the_host(
    machine, proxy: Proxy, remote: Path, tmp_path: Path
) -> None:
    assert machine.has_raw_folder("launch")
    assert fetched(machine, proxy, tmp_path / "raw") > BIG
    names = {p.relative_to(remote): p.read_bytes() for p in remote.rglob("*") if p.is_file()}
    for name, data in names.items():
        assert (tmp_path / "raw" / name).read_bytes() == data
    assert check_manifest(remote) is None


def test_what_has_arrived_is_not_fetched_again(
    machine, proxy: Proxy, remote: Path, tmp_path: Path
) -> None:
    partial = tmp_path / "raw.partial"
    partial.mkdir()
    whole = (remote / "big.log").read_bytes()
    (partial / "big.log").write_bytes(whole)
    (partial / "of-an-older-launch.log").write_text("x")
    assert fetched(machine, proxy, tmp_path / "raw") < BIG // 4


def test_a_file_that_was_cut_is_continued(
    machine, proxy: Proxy, remote: Path, tmp_path: Path
) -> None:
    partial = tmp_path / "raw.partial"
    partial.mkdir()
    whole = (remote / "big.log").read_bytes()
    (partial / "big.log").write_bytes(whole[: BIG - BIG // 4])
    assert BIG // 4 < fetched(machine, proxy, tmp_path / "raw") < BIG // 2


@pytest.mark.parametrize("size", [BIG // 2, BIG, BIG * 2])
def test_a_wrong_file_is_fetched_anew(
    machine, proxy: Proxy, remote: Path, tmp_path: Path, size: int
) -> None:
    partial = tmp_path / "raw.partial"
    partial.mkdir()
    (partial / "big.log").write_bytes(b"x" * size)
    assert fetched(machine, proxy, tmp_path / "raw") > BIG


def test_a_cut_leaves_what_has_arrived_and_the_next_call_goes_on(
    machine, proxy: Proxy, remote: Path, tmp_path: Path
) -> None:
    arrived = tmp_path / "raw.partial" / "big.log"

    def cut() -> None:
        # A reset drops what the client has not read yet.
        wait_until(lambda: arrived.stat().st_size > BIG // 4, "a quarter of the file")
        proxy.cut()

    proxy.after(BIG // 2, cut)
    with pytest.raises(HostLost, match=r"host h \(root@127.0.0.1:\d+\): download of launch: "):
        machine.fetch("launch", tmp_path / "raw")
    assert arrived.stat().st_size > BIG // 4
    assert not (tmp_path / "raw").exists()
    assert fetched(machine, proxy, tmp_path / "raw") < BIG


def test_a_silent_network_costs_the_lease(
    machine, proxy: Proxy, remote: Path, tmp_path: Path
) -> None:
    proxy.after(BIG // 2, proxy.go_silent)
    machine._host = dataclasses.replace(machine._host, lease_s=3.0)
    with pytest.raises(HostLost, match="no data for 3 s"):
        machine.fetch("launch", tmp_path / "raw")
    proxy.come_back()


def change_manifest(remote: Path, change: Callable[[dict[str, object]], object]) -> None:
    files = json.loads((remote / "manifest.json").read_text())
    change(files)
    (remote / "manifest.json").write_text(json.dumps(files))


def test_a_file_that_is_not_what_the_manifest_says_is_refused(
    machine, remote: Path, tmp_path: Path
) -> None:
    (remote / "events.jsonl").write_text("[]\n")
    with pytest.raises(HostLost, match=r"events\.jsonl has another hash"):
        machine.fetch("launch", tmp_path / "raw")
    assert not (tmp_path / "raw").exists()


@pytest.mark.parametrize("name", ["../outside", "/tmp/kvroad-outside", "a/../../outside"])
def test_a_manifest_that_leads_out_of_the_folder_is_refused(
    machine, remote: Path, tmp_path: Path, name: str
) -> None:
    facts = {"bytes": 3, "sha256": "0"}
    change_manifest(remote, lambda files: files.update({name: facts}))
    with pytest.raises(HostLost, match="which is outside the folder"):
        machine.fetch("launch", tmp_path / "raw")
    assert not (tmp_path / "outside").exists()


def test_no_manifest_no_folder(machine, remote: Path, tmp_path: Path) -> None:
    (remote / "manifest.json").write_text("{")
    with pytest.raises(HostLost, match="no valid manifest"):
        machine.fetch("launch", tmp_path / "raw")
