"""What a user gets who asks for something that is not there."""

import pytest

BANNER = "Using workflow specific profile"


def error_lines(done) -> list[str]:
    return [line for line in done.stderr.splitlines() if line and not line.startswith(BANNER)]


@pytest.fixture(scope="module")
def checkout(make_checkout):
    return make_checkout()


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("transport=[nvlnk]", "did you mean 'nvlink'"),
        ("prompt_tkens=[4096]", "did you mean 'prompt_tokens'"),
        ("transport=[]", "transport"),
        ("transport=[shm", "transport"),
        ("launches=three", "launches"),
        ("baseline=nvlink", "baseline"),
        ("study=loopbak", "did you mean 'loopback'"),
        ("hydra=transport.shm.ucx_tls=[cmaa]", "did you mean 'cma'"),
        ("hydra=engine.num_thread=2", "did you mean 'num_threads'"),
    ],
)
def test_bad_input_is_one_line_before_any_job(checkout, override: str, expected: str) -> None:
    done = checkout.snakemake("all", "--config", override)
    assert done.returncode != 0
    lines = error_lines(done)
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: ")
    assert expected in lines[0]
    assert not (checkout.path / "results").exists()


def test_a_repeated_config_is_one_line(checkout) -> None:
    done = checkout.snakemake("all", "--config", "seed=2", "--config", "launches=2")
    assert done.returncode != 0
    assert len(error_lines(done)) == 1


def test_an_override_without_config_is_one_line(checkout) -> None:
    done = checkout.snakemake("transport=[roce]")
    assert done.returncode != 0
    lines = error_lines(done)
    assert len(lines) == 1
    assert "--config" in lines[0]


@pytest.mark.parametrize(
    ("study", "launches", "matrix"),
    [
        ("loopback", 24, 24),
        ("smoke", 8, 8),
        ("roce_vs_nvlink", 8, 24),
        ("regions", 224, 224),
        ("aa", 32, 32),
    ],
)
def test_every_study_plans(checkout, study: str, launches: int, matrix: int) -> None:
    jobs = checkout.jobs(f"study={study}")
    assert jobs["measure_launch"] == launches
    assert jobs["gate"] == 1


def test_the_published_value_of_ucx_tls_is_planned_to_the_letter(checkout) -> None:
    done = checkout.snakemake("all", "-n", "--config", "study=roce_vs_nvlink", check=True)
    assert done.returncode == 0


def test_a_host_that_cannot_hold_the_pools_stops_the_study_in_one_line(checkout) -> None:
    done = checkout.snakemake("all", "--config", "study=smoke", "hydra=workload.concurrency=900000")
    assert done.returncode != 0
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "the largest workload.concurrency that fits is" in errors[0]
    assert not (checkout.path / "results/cells").exists()
    assert "Traceback" not in done.stderr
