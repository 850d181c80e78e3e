"""Every way in which a login can fail ends in one line that names host, user and step."""

import dataclasses
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ports import free_port
from sshd import Sshd, keygen, lock, needs_openssh_client, public_line
from waiting import wait_until

from kvroad.errors import UserError
from kvroad.hosts import AgentHost, HostLost
from kvroad.hosts.ssh.machine import SshMachine
from kvroad.study import fields as study

pytestmark = pytest.mark.live
# No test but those of a time-out waits for one.
LONG_S = 60.0


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "home"
    path.mkdir()
    monkeypatch.setenv("HOME", str(path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return path


def spec(sshd: Sshd | None = None, **changes: object) -> study.Host:
    fields: dict[str, object] = {
        "name": "h",
        "connection": "ssh",
        "address": "node1",
        "python": sys.executable,
        "connect_timeout_s": LONG_S,
        "lease_s": LONG_S,
    }
    if sshd is not None:
        fields["work_dir"] = str(sshd.work_dir)
    return study.Host(**{**fields, **changes})  # type: ignore[arg-type]


def facts_of(host: study.Host) -> dict[str, object]:
    machine = SshMachine(host)
    try:
        return AgentHost(host, machine).facts()
    finally:
        machine.close()


def refusal(host: study.Host) -> str:
    started = time.monotonic()
    with pytest.raises(UserError) as caught:
        facts_of(host)
    assert time.monotonic() - started < LONG_S
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith("host h (")
    return text


def test_address_port_user_and_key_come_from_ssh_config(sshd: Sshd, home: Path) -> None:
    sshd.account.use_in(home, "node1", sshd.port)
    assert facts_of(spec(sshd))["work_dir"] == str(sshd.node_dir)


def test_what_the_study_says_wins_over_ssh_config(sshd: Sshd, home: Path) -> None:
    sshd.account.use_in(home, "node1", free_port(), "User nobody")
    (home / ".ssh/config").write_text(
        (home / ".ssh/config").read_text().replace(str(sshd.account.key), "/no/such/key")
    )
    host = spec(sshd, port=sshd.port, user="root", identity_file=str(sshd.account.key))
    assert facts_of(host)["work_dir"]


def test_an_included_file_counts(sshd: Sshd, home: Path) -> None:
    sshd.account.use_in(home, "node1", sshd.port)
    (home / ".ssh/config").rename(home / ".ssh/cluster.conf")
    (home / ".ssh/config").write_text("Include cluster.conf\nHost other\n  Port 1\n")
    assert facts_of(spec(sshd))["work_dir"]


def test_a_jump_host_is_gone_through_and_its_key_is_checked(
    sshd: Sshd, home: Path, tmp_path: Path
) -> None:
    sshd.account.use_in(home, "gate", sshd.port)
    sshd.account.use_in(home, "node1", sshd.port, "ProxyJump gate")
    assert facts_of(spec(sshd))["work_dir"]
    config = (home / ".ssh/config").read_text()
    (home / ".ssh/config").write_text(
        config.replace(str(sshd.account.known_hosts), str(tmp_path / "none"), 1)
    )
    text = refusal(spec(sshd))
    assert "connect to jump host" in text
    assert "the host key is not known" in text


def test_an_alias_names_the_known_key(sshd: Sshd, home: Path, tmp_path: Path) -> None:
    known = tmp_path / "known"
    known.write_text(f"farm {sshd.host_key_line}\n")
    sshd.account.use_in(home, "node1", sshd.port)
    config = (home / ".ssh/config").read_text()
    config = config.replace(str(sshd.account.known_hosts), str(known))
    (home / ".ssh/config").write_text(config + "  HostKeyAlias farm\n")
    assert facts_of(spec(sshd))["work_dir"]


@needs_openssh_client
def test_an_unknown_host_key_is_refused_with_the_command_that_adds_it(
    sshd: Sshd, home: Path
) -> None:
    host = spec(sshd, address="127.0.0.1", port=sshd.port, identity_file=str(sshd.account.key))
    text = refusal(host)
    assert "the host key is not known (ssh-ed25519 SHA256:" in text
    command = text.rsplit("then: ", 1)[1]
    assert command == f"ssh-keyscan -p {sshd.port} 127.0.0.1 >> ~/.ssh/known_hosts"
    (home / ".ssh").mkdir()
    subprocess.run(["bash", "-c", command], check=True, stderr=subprocess.DEVNULL)
    assert facts_of(host)["work_dir"]


@needs_openssh_client
def test_a_changed_host_key_is_refused_with_the_command_that_drops_the_old_one(
    sshd: Sshd, home: Path, tmp_path: Path
) -> None:
    other = public_line(keygen(tmp_path / "other"))
    (home / ".ssh").mkdir()
    known = home / ".ssh/known_hosts"
    known.write_text(f"[127.0.0.1]:{sshd.port} {other}\n")
    host = spec(sshd, address="127.0.0.1", port=sshd.port, identity_file=str(sshd.account.key))
    text = refusal(host)
    assert "the host key has CHANGED from SHA256:" in text
    command = text.rsplit("anew: ", 1)[1]
    assert command == f"ssh-keygen -R '[127.0.0.1]:{sshd.port}' -f {known}"
    subprocess.run(["bash", "-c", command], check=True, capture_output=True)
    assert "the host key is not known" in refusal(host)


@pytest.mark.parametrize("kind", ["ed25519", "rsa", "ecdsa"])
def test_an_encrypted_key_without_an_agent_is_named(
    sshd: Sshd, home: Path, tmp_path: Path, kind: str
) -> None:
    key = keygen(tmp_path / "locked", "not told", kind)
    sshd.account.use_in(home, "node1", sshd.port)
    config = (home / ".ssh/config").read_text().replace(str(sshd.account.key), str(key))
    (home / ".ssh/config").write_text(config)
    text = refusal(spec(sshd))
    assert f"key {key} is encrypted and no agent offers it for user root: ssh-add {key}" in text


@needs_openssh_client
def test_an_encrypted_key_works_through_the_agent(
    sshd: Sshd, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = lock(sshd.account.key, tmp_path / "locked", "pass phrase")
    agent = subprocess.Popen(
        ["ssh-agent", "-D", "-a", str(tmp_path / "agent")], stdout=subprocess.DEVNULL
    )
    try:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
        wait_until((tmp_path / "agent").exists, "the agent's socket")
        subprocess.run(["ssh-add", "-q", str(sshd.account.key)], check=True)
        host = spec(sshd, address="127.0.0.1", port=sshd.port, identity_file=str(locked))
        (home / ".ssh").mkdir()
        shutil.copy(sshd.account.known_hosts, home / ".ssh/known_hosts")
        assert facts_of(host)["work_dir"]
    finally:
        agent.terminate()
        agent.wait()


def test_a_key_that_is_not_authorised_is_named_with_the_user(
    sshd: Sshd, home: Path, tmp_path: Path
) -> None:
    key = keygen(tmp_path / "other")
    sshd.account.use_in(home, "node1", sshd.port)
    config = (home / ".ssh/config").read_text().replace(str(sshd.account.key), str(key))
    (home / ".ssh/config").write_text(config)
    text = refusal(spec(sshd, user="root"))
    assert "login as root was refused; tried: " in text
    assert str(key) in text


def test_a_key_file_that_is_not_there_is_named(sshd: Sshd, home: Path) -> None:
    with pytest.raises(UserError, match="/no/key is not a file"):
        facts_of(spec(sshd, identity_file="/no/key"))


def test_a_closed_port_and_an_unknown_name_are_told(home: Path) -> None:
    text = refusal(spec(address="127.0.0.1", port=free_port()))
    assert "Unable to connect" in text
    text = refusal(spec(address="no-such-host.invalid"))
    assert "the name is not known" in text


@pytest.fixture
def mute() -> Iterator[int]:
    """Return the port of a server that accepts and says nothing."""
    listener = socket.create_server(("127.0.0.1", 0))
    yield listener.getsockname()[1]
    listener.close()


def test_a_server_that_says_nothing_costs_the_connect_timeout(home: Path, mute: int) -> None:
    def seconds() -> float:
        started = time.monotonic()
        text = refusal(spec(address="127.0.0.1", port=mute, connect_timeout_s=2.0))
        assert "no SSH server answers (host.connect_timeout_s=2; " in text
        return time.monotonic() - started

    # paramiko's own limit is 15 s; the machine may be slow once, not each time.
    assert any(2.0 <= seconds() < 14.0 for _ in range(3))


def test_a_python_that_is_missing_or_too_old_is_told(
    sshd: Sshd, home: Path, tmp_path: Path
) -> None:
    sshd.account.use_in(home, "node1", sshd.port)
    assert "host.python=/no/python does not run: " in refusal(spec(sshd, python="/no/python"))
    old = tmp_path / "old python"
    old.write_text(
        "#!/bin/sh\n"
        """printf 'hello from the login\\nkvroad-work-dir ["%s", "n", [3, 9, 2]]\\n' "$PWD"\n"""
    )
    old.chmod(0o755)
    text = refusal(spec(sshd, python=str(old)))
    assert "is Python 3.9.2; 3.10 or newer is needed" in text


def test_a_work_folder_that_cannot_be_made_is_told(sshd: Sshd, home: Path) -> None:
    sshd.account.use_in(home, "node1", sshd.port)
    assert "work folder: " in refusal(spec(sshd, work_dir="/proc/no/folder"))


def test_what_a_probe_printed_counts_though_its_process_crashed(sshd: Sshd, home: Path) -> None:
    sshd.account.use_in(home, "node1", sshd.port)
    machine = SshMachine(spec(sshd))
    host = AgentHost(machine._host, machine)
    end = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    try:
        assert host.probe(f"print('{{\"a\": 1}}', flush=True); {end}") == {"a": 1}
        with pytest.raises(HostLost, match="probe: ended with status"):
            host.probe(end)
    finally:
        machine.close()


def test_the_source_file_is_read_first(sshd: Sshd, home: Path, tmp_path: Path) -> None:
    sshd.account.use_in(home, "node1", sshd.port)
    source = tmp_path / "the module's file"
    source.write_text("echo noise; read line; export KVROAD_TEST_SOURCE='a b'\n")
    machine = SshMachine(spec(sshd, source=str(source)))
    script = "import os, json; print(json.dumps({'value': os.environ['KVROAD_TEST_SOURCE']}))"
    try:
        assert AgentHost(machine._host, machine).probe(script) == {"value": "a b"}
    finally:
        machine.close()
    assert "host.source cannot be read" in refusal(spec(sshd, source="/no/such file"))


def test_a_login_that_talks_does_not_get_between_the_events(sshd: Sshd, home: Path) -> None:
    # What ~/.bashrc prints comes in front of the agent's first line.
    machine = SshMachine(spec(sshd))
    sshd.account.use_in(home, "node1", sshd.port)
    machine._ready()
    channel = machine._execute("echo hello; echo '{}'; exit 3", "try")
    assert "".join(channel.lines()) == "hello\n{}\n"
    assert channel.wait(5.0) == 3
    machine.close()


def test_a_frozen_session_is_noticed_by_every_step(home: Path, make_sshd) -> None:
    sshd = make_sshd()
    sshd.account.use_in(home, "node1", sshd.port)
    host = spec(sshd)
    machine = SshMachine(host)
    AgentHost(host, machine).facts()
    machine._host = dataclasses.replace(host, connect_timeout_s=2.0, lease_s=3.0)
    frozen = sshd.sessions()
    for pid in frozen:
        os.kill(pid, 19)
    try:
        started = time.monotonic()
        with pytest.raises(HostLost, match=r"no answer within 2 s|Timeout"):
            machine.call(["facts"], LONG_S)
        assert time.monotonic() - started < LONG_S
    finally:
        for pid in frozen:
            os.kill(pid, 18)
        machine.close()


def test_threads_of_a_failed_connection_end(sshd: Sshd, home: Path) -> None:
    before = threading.active_count()
    host = spec(sshd, address="127.0.0.1", port=sshd.port, identity_file=str(sshd.account.key))
    refusal(host)
    wait_until(lambda: threading.active_count() <= before, "the threads of the connection")
