"""What the commands of the RoCE rig say when something is missing; no guest is started."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

RIG = Path(__file__).parent / "soft_roce"
SSH_KEY = "ssh-ed25519 AAAA root@soft-roce\n"


@pytest.fixture
def rig(tmp_path):
    """Return a function that runs a command of the rig in a folder and with tools of its own."""
    tools = tmp_path / "bin"
    tools.mkdir()

    def run(*words, **environment):
        return subprocess.run(
            [sys.executable, str(RIG), *words],
            env={**os.environ, "KVROAD_RIG_DIR": str(tmp_path / "rig"), **environment},
            capture_output=True,
            text=True,
            timeout=300,
        )

    run.folder = tmp_path / "rig"
    run.tools = tools
    return run


@pytest.fixture
def built(rig):
    """Return ``rig`` with an image that is none, and a QEMU that ends at once."""
    rig.folder.mkdir()
    for name in ("disk.img", "vmlinuz", "initrd.img", "id_ed25519"):
        (rig.folder / name).write_text("")
    (rig.folder / "host_key.pub").write_text(SSH_KEY)
    words = [sys.executable, "-c", "import recipe; print(recipe.digest())"]
    done = subprocess.run(words, cwd=RIG, capture_output=True, text=True, check=True)
    (rig.folder / "built.json").write_text(json.dumps({"recipe": done.stdout.strip()}))
    for name in ("qemu-system-x86_64", "ssh"):
        tool = rig.tools / name
        tool.write_text("#!/bin/sh\necho no such machine >&2\nexit 1\n")
        tool.chmod(0o755)
    return rig


def refusal(done):
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("soft_roce: ")
    return line


def test_missing_tools_are_told_with_their_packages(rig):
    # /usr/sbin is always searched, and QEMU and ssh are never there.
    line = refusal(rig("boot", PATH=str(rig.tools)))
    assert line == (
        "soft_roce: qemu-system-x86_64, ssh not found: "
        "apt-get install openssh-client qemu-system-x86"
    )


def test_stop_without_a_guest_is_no_error(rig):
    done = rig("stop")
    assert (done.returncode, done.stdout) == (0, "not running\n")


def test_boot_without_an_image_says_what_to_run(built):
    (built.folder / "built.json").write_text('{"recipe": "of another day"}')
    assert "no image of this recipe in" in refusal(built("boot", PATH=str(built.tools)))


def test_build_takes_what_is_there(built):
    done = built("build")
    assert (done.returncode, done.stdout) == (0, f"built already: {built.folder / 'disk.img'}\n")


def test_a_taken_port_is_told_before_anything_starts(built):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        line = refusal(built("boot", "--port", port, PATH=str(built.tools)))
    assert f"port {port} of 127.0.0.1: Address already in use; choose another" in line
    assert not (built.folder / "guest.json").exists()


def test_a_guest_that_ends_at_once_is_told_with_its_last_line(built):
    line = refusal(built("boot", "--port", "0", PATH=str(built.tools)))
    assert "QEMU ended: no such machine" in line
    assert not (built.folder / "guest.json").exists()


def test_ssh_files_name_port_key_and_the_host_key_of_the_build(built):
    built("boot", "--port", "0", PATH=str(built.tools))
    config = (built.folder / "ssh_config").read_text()
    port = config.partition("Port ")[2].split()[0]
    assert (built.folder / "known_hosts").read_text() == (f"[127.0.0.1]:{port} ssh-ed25519 AAAA\n")
    assert "StrictHostKeyChecking yes" in config


def test_another_process_with_the_guest_s_old_id_is_left_alone(built):
    state = {"pid": os.getpid(), "start_ticks": 1, "port": 1}
    (built.folder / "guest.json").write_text(json.dumps(state))
    assert built("stop").stdout == "not running\n"


def test_two_commands_at_a_time_are_one_too_many(built):
    code = f"import fcntl, time; f = open({str(built.folder / 'lock')!r}, 'a'); "
    code += "fcntl.flock(f, fcntl.LOCK_EX); print('held', flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout.readline() == b"held\n"
            line = refusal(built("stop"))
        finally:
            holder.kill()
    assert "another command of the rig works in" in line
