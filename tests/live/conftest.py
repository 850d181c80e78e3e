"""Real SSH servers on 127.0.0.1 with keys and files of their own."""

from collections.abc import Callable, Iterator

import pytest
from sshd import Account, PortTaken, Sshd, chosen_server


@pytest.fixture(scope="session")
def account(tmp_path_factory: pytest.TempPathFactory) -> Account:
    """Return keys and a known_hosts file that all servers of a test run share."""
    return Account.make(tmp_path_factory.mktemp("account"))


@pytest.fixture(scope="session")
def make_sshd(
    account: Account, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], Sshd]]:
    """Return a function that starts one more server; all are stopped at the end."""
    started: list[Sshd] = []

    def make() -> Sshd:
        while True:
            server = chosen_server()(account, tmp_path_factory.mktemp("sshd"))
            try:
                server.start()
            except PortTaken:
                continue
            started.append(server)
            return server

    yield make
    for server in started:
        server.stop()


@pytest.fixture(scope="session")
def sshd(make_sshd: Callable[[], Sshd]) -> Sshd:
    """Return one server that the tests of a run share."""
    return make_sshd()
