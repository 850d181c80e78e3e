"""bundle, run where there is only Python and NIXL, ingest, verdict."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.xdist_group("loopback")]
WORDS = ["study=smoke", "prompt_tokens=[256]"]


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which Python finds NIXL and numpy, and nothing else of ours."""
    packages = tmp_path / "packages"
    packages.mkdir()
    here = next(Path(p) for p in sys.path if (Path(p) / "nixl_cu13").is_dir())
    for found in (*here.glob("nixl*"), *here.glob("numpy*")):
        (packages / found.name).symlink_to(found)
    home = tmp_path / "home"
    home.mkdir()
    return {"PATH": "/usr/bin:/bin", "HOME": str(home), "PYTHONPATH": str(packages)}


def run(folder: Path, environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-S", "study.pyz", "OUT"]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )


def test_the_folder_made_by_hand_becomes_a_verdict(make_checkout, tmp_path: Path, bare) -> None:
    checkout = make_checkout()
    bundled = checkout.kvroad("bundle", *WORDS, "-o", "study.pyz")
    assert bundled.returncode == 0, bundled.stderr
    assert "4 launches" in bundled.stdout
    folder = tmp_path / "empty"
    folder.mkdir()
    shutil.move(checkout.path / "study.pyz", folder)

    # Stopped in the middle, it goes on from there.
    first = subprocess.Popen(
        [sys.executable, "-S", "study.pyz", "OUT"], cwd=folder, env=bare, stderr=subprocess.PIPE
    )
    wait_until(lambda: list(folder.glob("OUT/*/manifest.json")), "the first launch")
    first.send_signal(signal.SIGTERM)
    _, said = first.communicate(timeout=300)
    assert first.returncode == 130, said
    assert b"the same command goes on from here" in said
    n_done = sum(status(p) == "complete" for p in folder.glob("OUT/*"))
    assert 1 <= n_done < 4

    early = checkout.kvroad("ingest", str(folder / "OUT"), *WORDS)
    assert f"{n_done} raw folders taken in, 0 refused" in early.stdout
    done = run(folder, bare)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(": is there") == n_done
    assert "kvroad ingest OUT study=smoke 'prompt_tokens=[256]'" in done.stderr
    taken = checkout.kvroad("ingest", str(folder / "OUT"), *WORDS)
    assert taken.returncode == 0, taken.stdout + taken.stderr
    assert f"{4 - n_done} raw folders taken in, 0 refused" in taken.stdout

    jobs = checkout.jobs(*WORDS)
    assert "measure_launch" not in jobs
    checkout.snakemake("all", "--config", *WORDS, check=True)
    assert (checkout.path / "reports/smoke+prompt_tokens=[256]/verdict.md").exists()
    again = checkout.kvroad("bundle", *WORDS, "-o", "again.pyz")
    assert again.returncode == 1
    assert "nothing to bundle" in again.stderr


def status(folder: Path) -> str | None:
    if not (folder / "manifest.json").exists():
        return None
    rows = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return next(row["status"] for row in rows if row["event"] == "end")


@pytest.fixture(scope="module")
def handmade(make_checkout, tmp_path_factory):
    """Return a checkout, and a folder with the raw folder of its first launch."""
    checkout = make_checkout()
    checkout.kvroad("bundle", *WORDS, "transport=[shm]", "launches=2", "-o", "study.pyz")
    out = tmp_path_factory.mktemp("out")
    command = [sys.executable, str(checkout.path / "study.pyz"), str(out)]
    environment = {**os.environ, "HOME": str(checkout.home)}
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=300)
    return checkout, out


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["prompt_tokens=[512]"], "is not of study smoke as it is now"),
        (["prompt_tokens=[256]", "workload.pulls=4"], "is not of study smoke as it is now"),
    ],
)
def test_a_folder_of_another_study_is_refused(handmade, words: list[str], reason: str) -> None:
    checkout, out = handmade
    done = checkout.kvroad("ingest", str(out), "study=smoke", "transport=[shm]", *words)
    assert done.returncode == 1
    assert done.stdout.count(reason) == 2
    assert not (checkout.path / "results/cells").exists()


def test_a_changed_plan_and_a_changed_file_are_refused(handmade, tmp_path: Path) -> None:
    checkout, out = handmade
    from kvroad.agent.manifest import write_manifest

    changed = shutil.copytree(out, tmp_path / "changed")
    one, other = sorted(changed.iterdir())
    plan = json.loads((one / "plan.json").read_text())
    plan["processes"][1]["env"]["UCX_TLS"] = "tcp"
    (one / "plan.json").write_text(json.dumps(plan))
    (one / "manifest.json").unlink()
    write_manifest(one)
    with open(other / "pulls-0.jsonl", "a") as file:
        file.write("{}\n")
    done = checkout.kvroad("ingest", str(changed), *WORDS, "transport=[shm]")
    assert done.returncode == 1
    assert "its plan is not the study's: plan.processes[1].env.UCX_TLS: 'tcp' is not" in done.stdout
    assert "pulls-0.jsonl has " in done.stdout
    assert not (checkout.path / "results/cells").exists()


def test_a_study_by_hand_says_how(make_checkout) -> None:
    checkout = make_checkout()
    done = checkout.snakemake("all", "--config", *WORDS, "hydra=host.connection=hand")
    assert done.returncode != 0
    assert "make a file with 'kvroad bundle'" in done.stderr


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (["stop", "study=smok"], 2, "did you mean 'smoke'"),
        (["ingest", "/no/folder", "study=smoke"], 1, "no raw folder in it"),
        (["bundle", "study=smoke", "-o", "/proc/no/file"], 1, "/proc/no/file"),
        (["bundle", "study=smoke"], 2, "-o"),
        (["stpo"], 2, "invalid choice"),
    ],
)
def test_a_command_that_cannot_be_done_says_so(
    make_checkout, words: list[str], status: int, text: str
) -> None:
    done = make_checkout().kvroad(*words)
    assert done.returncode == status
    assert text in done.stderr
    assert "Traceback" not in done.stderr
