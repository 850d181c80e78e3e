"""Real sshd processes on 127.0.0.1 with keys and files of their own."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sshd import SSHD, Account, Sshd


@pytest.fixture(scope="session")
def account(tmp_path_factory: pytest.TempPathFactory) -> Account:
    """Return keys and a known_hosts file that all sshd of a test run share."""
    if not Path(SSHD).exists():
        pytest.skip(f"no {SSHD}: install openssh-server")
    if shutil.which("ssh-keygen") is None:
        pytest.skip("no ssh-keygen: install openssh-client")
    return Account.make(tmp_path_factory.mktemp("account"))


@pytest.fixture(scope="session")
def make_sshd(
    account: Account, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], Sshd]]:
    """Return a function that starts one more sshd; all are stopped at the end."""
    started: list[Sshd] = []

    def make() -> Sshd:
        server = Sshd(account, tmp_path_factory.mktemp("sshd"))
        server.start()
        started.append(server)
        return server

    yield make
    for server in started:
        server.stop()


@pytest.fixture(scope="session")
def sshd(make_sshd: Callable[[], Sshd]) -> Sshd:
    """Return one sshd that the tests of a run share."""
    return make_sshd()
