"""Prefill and decode on two sshd with separate work folders."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sshd import Sshd

from kvroad.agent.manifest import check_manifest
from kvroad.engines.nixl import replay_plan
from kvroad.errors import UserError
from kvroad.hosts import open_host
from kvroad.hosts.agent_host import one_line
from kvroad.hosts.pair import PairedHosts
from kvroad.plan import Plan
from kvroad.proof.judge import judge_raw
from kvroad.study import fields as study
from kvroad.study.design import make_design
from kvroad.study.fields import Claims, Engine, HostSide, Model, Study, Transport, Variant, Workload

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.xdist_group("loopback")]
MODEL = Model("m", 8, num_attention_heads=16, num_key_value_heads=16, head_dim=128)
WORKLOAD = Workload(warmup_pulls=1, pulls=2, concurrency=2, pulls_in_flight=2)


@pytest.fixture(scope="module")
def pair(make_sshd: Callable[[], Sshd]) -> tuple[Sshd, Sshd]:
    return make_sshd(), make_sshd()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pair: tuple[Sshd, Sshd]) -> Path:
    path = tmp_path / "home"
    path.mkdir()
    monkeypatch.setenv("HOME", str(path))
    for name, sshd in zip(("node1", "node2"), pair, strict=True):
        sshd.account.use_in(path, name, sshd.port)
    return path


def host_of(pair: tuple[Sshd, Sshd], **changes: object) -> study.Host:
    sides = [
        HostSide(address=name, work_dir=str(sshd.work_dir))
        for name, sshd in zip(("node1", "node2"), pair, strict=True)
    ]
    fields: dict[str, object] = {
        "name": "pair",
        "connection": "ssh",
        "python": sys.executable,
        "connect_timeout_s": 60.0,
        "lease_s": 60.0,
        "interfaces": ["lo"],
        "env": {"UCX_NET_DEVICES": "lo"},
        "prefill": sides[0],
        "decode": sides[1],
    }
    return study.Host(**{**fields, **changes})  # type: ignore[arg-type]


def plan_of(host: study.Host, **engine: object) -> Plan:
    tcp = Transport(roads=["tcp"], ucx_tls=["tcp"], counters=["interface"])
    asked = Study(
        name="pair",
        host=host,
        engine=Engine(**engine),  # type: ignore[arg-type]
        transports={"tcp": tcp},
        variants={"blocks": Variant()},
        model=MODEL,
        workload=WORKLOAD,
        claims=Claims(),
        prompt_tokens=[256],
        launches=2,
        baseline="tcp",
    )
    launch = make_design(asked).launches[0]
    return replay_plan(asked, launch, launch.cells, "a test")


@pytest.mark.parametrize(
    ("operation", "ends"), [("read", ("decode", "prefill")), ("write", ("prefill", "decode"))]
)
def test_tcp_is_proven_at_both_ends(
    pair, home: Path, tmp_path: Path, operation: str, ends: tuple[str, str]
) -> None:
    host = host_of(pair)
    plan = plan_of(host, operation=operation)
    raw = tmp_path / "raw"
    opened = open_host(host)
    opened.run(plan, raw, lambda event: None)
    opened.close()
    assert check_manifest(raw) is None
    outcome = judge_raw(raw)
    assert outcome.outcome == "proven", outcome
    counted = next(w for w in outcome.witnesses if w.name == "interface_bytes")
    for end in ends:
        assert f"at the {end} host" in counted.seen
    assert f"counters.jsonl net/lo {'rx' if operation == 'read' else 'tx'}_bytes" in counted.where
    assert f"{ends[1]}.counters.jsonl net/lo " in counted.where
    # Each host ran its own half only, and both kept nothing.
    for sshd, side in zip(pair, ("prefill", "decode"), strict=True):
        name = "plan.json" if side == ends[0] else f"{side}.plan.json"
        ran = [p["name"] for p in json.loads((raw / name).read_text())["processes"]]
        assert ran == [f"{side}-0"]
        assert list((sshd.node_dir / "launches").iterdir()) == []
        assert list(sshd.node_dir.glob("ledger/*")) == []


def test_two_ranks_pull_at_once(pair, home: Path, tmp_path: Path) -> None:
    host = host_of(pair)
    opened = open_host(host)
    opened.run(plan_of(host, rank_pairs=2), tmp_path / "raw", lambda event: None)
    opened.close()
    assert judge_raw(tmp_path / "raw").outcome == "proven"


def test_what_one_end_does_not_see_is_refused(pair, home: Path, tmp_path: Path) -> None:
    # The decode host counts an interface that carries nothing of it.
    idle = next(p.name for p in Path("/sys/class/net").iterdir() if p.name != "lo")
    decode = HostSide(address="node2", work_dir=str(pair[1].work_dir), interfaces=[idle])
    host = host_of(pair, decode=decode)
    opened = open_host(host)
    opened.run(plan_of(host), tmp_path / "raw", lambda event: None)
    opened.close()
    outcome = judge_raw(tmp_path / "raw")
    assert outcome.outcome == "refused"
    assert f"net/{idle}" in outcome.where
    assert "at the decode host" in outcome.reason
    events = [json.loads(x) for x in (tmp_path / "raw/events.jsonl").read_text().splitlines()]
    assert events[-1]["status"] == "stopped"


def test_a_failure_at_the_passive_end_is_told(pair, home: Path, tmp_path: Path) -> None:
    prefill = HostSide(address="node1", work_dir=str(pair[0].work_dir), bind_address="192.0.2.1")
    host = host_of(pair, prefill=prefill)
    opened = open_host(host)
    opened.run(plan_of(host), tmp_path / "raw", lambda event: None)
    opened.close()
    outcome = judge_raw(tmp_path / "raw")
    assert outcome.outcome == "failed"
    assert "192.0.2.1" in outcome.reason
    assert list(pair[0].node_dir.glob("ledger/*")) == []


def test_hosts_are_locked_in_the_order_of_their_names_and_a_busy_one_frees_the_other(
    pair, home: Path, tmp_path: Path
) -> None:
    host = host_of(pair)
    opened = open_host(host)
    assert isinstance(opened, PairedHosts)
    assert [one.host.name for one in opened.hosts()] == ["pair-decode", "pair-prefill"]
    prefill = next(one for one in opened.hosts() if one.host.name == "pair-prefill")
    session = prefill.session("--relayed")
    with session:
        session.send(one_line(plan_of(host)))
        told: set[object] = set()
        while "launch" not in told:
            event = session.next_event()
            assert event is not None
            told.add(event["event"])
        with pytest.raises(UserError, match=r"host pair-prefill .* is busy: a test \(pid \d+\)"):
            opened.run(plan_of(host), tmp_path / "raw", lambda event: None)
        session.send("stop")
    again = open_host(host)
    again.run(plan_of(host), tmp_path / "raw", lambda event: None)
    again.close()
    opened.close()
    assert judge_raw(tmp_path / "raw").outcome == "proven"


@pytest.mark.slow
def test_a_study_on_two_hosts_from_configuration_to_verdict(pair, make_checkout) -> None:
    checkout = make_checkout()
    (checkout.home / ".ssh").mkdir()
    known = pair[0].account.known_hosts.read_text()
    (checkout.home / ".ssh/known_hosts").write_text(known)
    words = [f"host.python={sys.executable}", f"host.identity_file={pair[0].account.key}"]
    for side, sshd in zip(("prefill", "decode"), pair, strict=True):
        words += [
            f"host.{side}.address=127.0.0.1",
            f"host.{side}.port={sshd.port}",
            f"host.{side}.work_dir={sshd.work_dir}",
        ]
    chosen = ["study=smoke", "host=ssh", "transport=[tcp]", "prompt_tokens=[256]"]
    done = checkout.snakemake("all", "--config", *chosen, "hydra=" + " ".join(words), check=True)
    assert "every one of 2 cells is proven" in done.stderr
    assert len(list(checkout.path.glob("results/hosts/ssh-*/preflight.json"))) == 2
    study_dir = next(checkout.path.glob("results/studies/*"))
    cells = json.loads((study_dir / "provenance.json").read_text())
    assert any(name.startswith("prefill.") for name in cells)
    assert list(checkout.path.glob("reports/*/verdict.md"))

    refused = checkout.snakemake(
        "all", "--config", *chosen[:2], "transport=[shm]", "hydra=" + " ".join(words)
    )
    assert refused.returncode != 0
    assert "cma joins processes of one host; these are two" in refused.stderr
