"""No secret in a file, an argument list or the tracking store."""

import contextlib
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sshd import Account, lock, needs_openssh_client
from waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("loopback")]

TOKEN = "hf_AbCdEfGhIjKlMnOpQrStUv"
ON_HOST = "hf_OnTheHostOnlyAbCdEfGhIj"
PASSWORD = "hunter2-of-the-store"
PASSPHRASE = "open-sesame-of-the-key"
SECRETS = [TOKEN, ON_HOST, PASSWORD, PASSPHRASE]


def files_with(secret: str, *folders: Path) -> list[Path]:
    return [
        path
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink() and secret.encode() in path.read_bytes()
    ]


@contextlib.contextmanager
def watched_arguments() -> Iterator[set[str]]:
    """Collect every argument list on this machine that holds a secret, while it lasts."""
    seen: set[str] = set()
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):
                    words = path.read_bytes().decode(errors="replace")
                    if any(secret in words for secret in SECRETS):
                        seen.add(words.replace("\0", " "))
            time.sleep(0.05)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


@pytest.fixture
def key_agent(tmp_path: Path, account: Account) -> Iterator[tuple[Path, Path]]:
    """Return a socket of an agent that holds the account's key, and the key encrypted."""
    locked = lock(account.key, tmp_path / "locked", PASSPHRASE)
    socket = tmp_path / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL)
    wait_until(socket.exists, "the agent's socket")
    add = ["ssh-add", "-q", str(account.key)]
    subprocess.run(add, check=True, env={**os.environ, "SSH_AUTH_SOCK": str(socket)})
    yield socket, locked
    agent.terminate()
    agent.wait()


@needs_openssh_client
def test_a_study_over_ssh_leaves_no_secret_behind(
    make_checkout, make_sshd, key_agent, tmp_path: Path
) -> None:
    socket, locked = key_agent
    checkout, sshd = make_checkout(), make_sshd()
    (checkout.home / ".ssh").mkdir()
    shutil.copy(sshd.account.known_hosts, checkout.home / ".ssh/known_hosts")
    source = tmp_path / "source"
    source.write_text(f"export HF_TOKEN={ON_HOST}\n")
    reach = [
        *(o for o in sshd.overrides() if "identity_file" not in o),
        f"host.identity_file={locked}",
        f"host.source={source}",
    ]
    words = ["study=smoke", "host=ssh", "prompt_tokens=[256]", "transport=[shm]"]
    store = f"http://somebody:{PASSWORD}@127.0.0.1:9/"
    with watched_arguments() as seen:
        done = checkout.snakemake(
            "all",
            "--config",
            *words,
            "hydra=" + " ".join(reach),
            HF_TOKEN=TOKEN,
            SSH_AUTH_SOCK=str(socket),
            MLFLOW_TRACKING_URI=store,
            MLFLOW_HTTP_REQUEST_MAX_RETRIES="0",
            MLFLOW_HTTP_REQUEST_TIMEOUT="2",
        )
    assert len(list(checkout.path.glob("results/cells/*/outcome.json"))) == 2, done.stderr
    assert list(checkout.path.glob("reports/*/index.html")), done.stderr
    assert seen == set()
    for secret in SECRETS:
        assert files_with(secret, checkout.path, sshd.work_dir) == []
        assert secret not in done.stdout + done.stderr


@pytest.mark.slow
def test_a_password_in_the_configuration_stays_there(make_checkout) -> None:
    checkout = make_checkout()
    words = ["study=smoke", "prompt_tokens=[256]", "transport=[shm]"]
    uri = f"hydra=tracking.uri='http://somebody:{PASSWORD}@127.0.0.1:9/'"
    done = checkout.snakemake(
        "all",
        "--config",
        *words,
        uri,
        MLFLOW_HTTP_REQUEST_MAX_RETRIES="0",
        MLFLOW_HTTP_REQUEST_TIMEOUT="2",
    )
    assert list(checkout.path.glob("reports/*/index.html")), done.stderr
    assert files_with(PASSWORD, checkout.path) == []
    assert PASSWORD not in done.stdout + done.stderr


def test_a_secret_in_the_configuration_is_refused_with_a_better_place(make_checkout) -> None:
    done = make_checkout().snakemake(
        "all", "--config", "study=smoke", f"hydra=+host.env.HF_TOKEN={TOKEN}"
    )
    assert done.returncode != 0
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "host.source" in errors[0]
    assert TOKEN not in done.stderr
