"""The bench of the fault matrix, and where its rows go."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bench import Bench, Row, as_json


@pytest.fixture(scope="session")
def make_bench(
    make_checkout, make_sshd, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Bench]]:
    """Return a function that makes a bench; all are cleaned up at the end."""
    made: list[Bench] = []

    def make(work_dir: Path | None = None) -> Bench:
        sshd = make_sshd()
        if work_dir is not None:
            sshd.work_dir = work_dir
        bench = Bench(make_checkout(), sshd, tmp_path_factory.mktemp("bench"))
        made.append(bench)
        return bench

    yield make
    for bench in made:
        bench.stop()
        bench.proxy.close()


@pytest.fixture(scope="session")
def shared_bench(make_bench) -> Bench:
    """Return a bench on which two cells are finished."""
    bench = make_bench()
    bench.complete(256)
    assert len(bench.finished()) == 2
    return bench


@pytest.fixture
def bench(shared_bench: Bench) -> Iterator[Bench]:
    """Return the bench with nothing running on it, before and after."""
    assert shared_bench.processes() == []
    yield shared_bench
    shared_bench.stop()


@pytest.fixture(scope="session")
def rows(request: pytest.FixtureRequest) -> Iterator[list[Row]]:
    """Collect the rows of the matrix; ``--faults-json`` says where to write them."""
    collected: list[Row] = []
    yield collected
    path = request.config.getoption("--faults-json")
    if path:
        Path(path).write_text(as_json(collected), encoding="utf-8")
