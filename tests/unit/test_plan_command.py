"""`kvroad plan`: of a study not run yet, and of a published one whose cells are taken in."""

import json
import shutil
import statistics
import tarfile
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import pytest
from commands import REPOSITORY, kvroad
from studies import make_study

from kvroad.cli.plan import schedule
from kvroad.cli.plan.processes import commands_of
from kvroad.files import write_json
from kvroad.plan import Claim, File, Plan, Process
from kvroad.study.design import make_design


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with the cells of h200_roads taken in, one of them refused since."""
    folder = tmp_path_factory.mktemp("plan")
    shutil.copytree(REPOSITORY / "conf", folder / "conf")
    report = folder / "reports/published/h200_roads"
    report.mkdir(parents=True)
    for name in ("cells.csv", "study.json", "verdict.csv", "raw.tar.xz"):
        shutil.copy(REPOSITORY / "reports/published/h200_roads" / name, report)
    with tarfile.open(report / "raw.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    path = next((folder / "results" / "cells").glob("tcp-p4096-b1-*")) / "outcome.json"
    outcome = json.loads(path.read_text())
    write_json(path, {**outcome, "outcome": "refused", "reason": "seen over there"})
    return folder


def spans(folder: Path, arm: str, tokens: int) -> list[float]:
    found = []
    for path in (folder / "results" / "cells").glob(f"{arm}-p{tokens}-*/raw/events.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        found.append((rows[-1]["mono_ns"] - rows[0]["mono_ns"]) / 1e9)
    return found


def test_what_is_there_and_what_is_missing(measured: Path) -> None:
    data = kvroad("plan", "study=h200_roads", "launches=6", "--json", folder=measured).data
    rows = {(r["arm"], r["prompt_tokens"]): r for r in data["matrix"]}
    assert [rows["nvlink", 4096][k] for k in ("proven", "refused", "missing")] == [4, 0, 2]
    assert [rows["tcp", 4096][k] for k in ("proven", "refused", "missing")] == [3, 1, 2]
    assert rows["tcp", 4096]["reason"] == "seen over there"
    assert data["cells"] == 24
    first = data["to_run"][0]
    assert (first["arm"], first["prompt_tokens"], first["block"]) == ("tcp", [4096], 1)
    assert len(data["to_run"]) == 9
    assert data["published"] is None


def test_time_and_cost_from_the_launches_seen(measured: Path) -> None:
    words = ("study=h200_roads", "host.price_per_hour=7.2", "--json")
    data = kvroad("plan", *words, folder=measured).data
    assert [row["arm"] for row in data["to_run"]] == ["tcp"]
    # Of the arm's other launches at this length: the refused one tells nothing.
    refused = next((measured / "results" / "cells").glob("tcp-p4096-b1-*")).name
    rows = (measured / "results" / "cells" / refused / "raw" / "events.jsonl").read_text()
    events = [json.loads(line) for line in rows.splitlines()]
    own = (events[-1]["mono_ns"] - events[0]["mono_ns"]) / 1e9
    others = [s for s in spans(measured, "tcp", 4096) if s != pytest.approx(own, abs=1e-9)]
    assert len(others) == 3
    time = data["time"]
    assert time["seconds"] == pytest.approx(statistics.median(others) + time["between_s"])
    assert (time["n_seen"], time["n_unlike"]) == (15, 0)
    assert data["cost"] == pytest.approx(7.2 * time["seconds"] / 3600)


def test_several_hosts_work_at_the_same_time_and_each_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(REPOSITORY / "conf", tmp_path / "conf")
    spans = [
        schedule._Span(arm, host, (tokens,), "run", at, at, 10.0)
        for at in [datetime(2026, 1, 1, tzinfo=UTC)]
        for host in ("local", "ssh")
        for arm in ("shm", "tcp")
        for tokens in (256, 512)
    ]
    monkeypatch.setattr(schedule, "_spans", lambda design, results: spans)
    words = ["study=smoke", "launches=8", "host=[local,ssh]", "host.ssh.address=node1"]
    words += ["host.ssh.price_per_hour=7", "host.local.price_per_hour=1"]
    data = kvroad("plan", *words, "--json", folder=tmp_path).data
    assert [host["name"] for host in data["hosts"]] == ["local", "ssh"]
    placed = {(row["host"], row["block"] % 2) for row in data["to_run"]}
    assert placed == {("local", 0), ("ssh", 1)}
    # 4 blocks of 2 arms at 2 lengths on each host.
    assert data["time"]["by_host"] == {"local": 160.0, "ssh": 160.0}
    assert data["time"]["seconds"] == 160.0
    assert data["cost"] == pytest.approx((7 + 1) * 160 / 3600)
    done = kvroad("plan", *words[:-1], folder=tmp_path)
    assert "on hosts local (local), ssh (ssh), " in done.out
    assert "cost: unknown, no price_per_hour of host local" in done.out
    assert "  1 on ssh: " in done.out


def test_launches_unlike_any_seen_count_as_the_longest(measured: Path) -> None:
    words = ("study=h200_roads", "prompt_tokens=[4096,16384,65536]", "--json")
    data = kvroad("plan", *words, folder=measured).data
    assert data["time"]["n_unlike"] == 8
    longest = max(
        s for arm in ("nvlink", "tcp") for n in (4096, 16384) for s in spans(measured, arm, n)
    )
    assert data["time"]["seconds"] > 8 * longest
    assert "8 are unlike any seen" in kvroad("plan", *words[:2], folder=measured).out


def test_power_from_the_spread_of_the_report(measured: Path) -> None:
    done = kvroad("plan", "study=h200_roads", folder=measured)
    assert "power of 4 launches, with the spread of reports/published/h200_roads:" in done.out
    data = kvroad("plan", "study=h200_roads", "--json", folder=measured).data["power"]
    assert data["spread_from"] == "reports/published/h200_roads"
    row = data["rows"][0]
    assert row["metric"] == "pull_ms"
    assert row["interval_low"] < 1 < row["interval_high"]
    more = kvroad("plan", "study=h200_roads", "launches=40", "--json", folder=measured).data
    wide = row["interval_high"], row["chance_of_same"]
    narrow = more["power"]["rows"][0]["interval_high"], more["power"]["rows"][0]["chance_of_same"]
    assert narrow[0] < wide[0]
    assert narrow[1] > wide[1]


def test_a_study_that_was_never_run_says_so(tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "conf", tmp_path / "conf")
    done = kvroad("plan", "study=smoke", folder=tmp_path)
    assert done.status == 0
    assert "time: unknown, no launch of this study has been seen here" in done.out
    assert "cost: unknown, host.price_per_hour is not set" in done.out
    assert "power: unknown, nothing was measured yet" in done.out
    assert "0: 256: shm tcp | 512: tcp shm" in done.out
    assert "use_counts: every descriptor over cma, none elsewhere" in done.out
    assert not (tmp_path / "results").exists(), "a plan leaves nothing behind"


def test_memory_is_that_of_the_pools(tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "conf", tmp_path / "conf")
    pools = kvroad("plan", "study=smoke", "--json", folder=tmp_path).data["memory"]
    # 512 tokens: 880 descriptors of 128 KiB, a page between each, two pulls at once.
    assert pools["bytes_per_side"] == pytest.approx(2 * 880 * 131072, rel=0.04)
    assert (pools["kind"], pools["is_one_host"]) == ("DRAM", True)


def test_published_cells_can_be_taken_in(tmp_path: Path) -> None:
    for name in ("conf", "reports"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    done = kvroad("plan", "study=h200_roads", folder=tmp_path)
    assert "tar -xJf reports/published/h200_roads/raw.tar.xz takes them in" in done.out


def test_commands_of_one_launch_per_arm() -> None:
    done = kvroad("plan", "study=smoke", "variant=[blocks,push]", "--show-commands")
    assert "UCX_TLS=cma,tcp \\" in done.out
    assert "'{python}' -m replay decode 0 --config replay.json" in done.out
    assert [
        line.split(":")[0].split("-p")[0] for line in done.out.splitlines() if ": arm " in line
    ] == [*("shm", "tcp", "shm+push", "tcp+push")]
    launch = done.out.split(":", 1)[0]
    one = kvroad("plan", "study=smoke", "--show-commands", "--launch", launch)
    assert one.out.count(": arm ") == 1
    missing = kvroad("plan", "study=smoke", "--show-commands", "--launch", launch[:-1])
    assert (missing.status, f"did you mean '{launch}'?" in missing.err) == (2, True)


def test_commands_of_serving_engines_say_when_each_is_ready() -> None:
    done = kvroad("plan", "study=h200_serving", "--show-commands")
    url = "http://{bind}:{port:prefill-0}/health"
    told = f"  prefill-0, ready when {url} answers within 300 s (the next one starts 3 s after it)"
    assert told in done.out
    assert (
        "  driver, ready at its event 'ready' within 300 s, ended by the line 'quit':" in done.out
    )


def test_commands_of_any_plan_without_secrets() -> None:
    launch = make_design(make_study()).launches[0]
    process = Process(
        "worker",
        ["python3", "-m", "engine", "--api-key", "sk-abcdefghijklmnopqrst", "--name", "a b"],
        {"HF_TOKEN": "hf_abcdefghijklmnopqrst", "PLAIN": "1"},
    )
    claim = Claim("shm", ["cma"], "read", "DRAM", 1, {})
    plan = Plan("l", "shm", "me", claim, [process], [], [File("a.json", "{}")])
    text = json.dumps(asdict(commands_of(launch, launch.cells, plan)))
    assert "abcdefghijklmnopqrst" not in text
    assert "PLAIN" in text
    assert "'a b'" in text


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["study=smok"], 2, "did you mean 'smoke'?"),
        (["study=smoke", "--launch", "x"], 2, "needs --show-commands"),
        (["study=smoke", "--spread-from", "h200"], 1, "no study 'h200'"),
        (["study=smoke", "--spread-from", "soft_roce"], 0, ""),
    ],
)
def test_what_cannot_be_meant(words: list[str], status: int, said: str) -> None:
    done = kvroad("plan", *words)
    assert done.status == status, done.err
    assert said in done.err
