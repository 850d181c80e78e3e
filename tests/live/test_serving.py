"""Real Dynamo, vLLM, NIXL and aiperf on this machine's processors."""

import json
from pathlib import Path

import pytest

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.xdist_group("loopback")]

FOLDER = Path.home() / ".cache" / "kvroad" / "cpu_serving"
SHORT = ("prompt_tokens=[2048]", "contrasts=null", "launches=2")
HOST = [
    f"host.serving.{name}={FOLDER / path}"
    for name, path in (
        ("python", "engines/bin/python"),
        ("aiperf", "aiperf/bin/aiperf"),
        ("model", "model"),
    )
]


@pytest.fixture
def serving_checkout(make_checkout):
    if not (FOLDER / "ready.json").is_file():
        pytest.skip(f"no {FOLDER / 'ready.json'}: uv run python tools/cpu_serving.py makes it")
    return make_checkout()


def outcomes(checkout) -> list[dict[str, object]]:
    paths = sorted(checkout.path.glob("results/cells/*/outcome.json"))
    return [json.loads(path.read_text()) for path in paths]


def test_a_served_model_is_measured_over_shm_and_alone_and_a_false_claim_is_refused(
    serving_checkout,
) -> None:
    words = ("study=cpu_serving", *SHORT, "hydra=" + " ".join(["transport=[shm,none]", *HOST]))
    done = serving_checkout.snakemake("all", "--config", *words)
    assert done.returncode == 0, done.stderr[-3000:]
    assert {o["outcome"] for o in outcomes(serving_checkout)} == {"proven"}
    assert {o["seen"] for o in outcomes(serving_checkout)} == {"cma", "none"}
    checks = {
        json.loads(path.read_text())["cache_check"].partition(":")[0]
        for path in serving_checkout.path.glob("results/cells/shm-*/raw/versions.json")
    }
    assert checks == {"equal"}
    words = ("study=cpu_serving", *SHORT, "hydra=" + " ".join(["transport=[roce]", *HOST]))
    done = serving_checkout.snakemake("all", "--config", *words)
    assert done.returncode != 0
    refused = [o for o in outcomes(serving_checkout) if o["outcome"] == "refused"]
    assert refused
    assert all("tcp" in str(o["reason"]) for o in refused)
