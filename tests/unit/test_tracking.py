"""What tracking decides without a store: names, targets, and the runs that files call for."""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path

import pytest
from tracked_study import CELL, QUOTE, write_study

from kvroad.errors import UserError
from kvroad.publish.tracking import is_logged, legal_name, original_name, resolve_target
from kvroad.publish.tracking.names import NAME_LIMIT, clip, long_names
from kvroad.publish.tracking.run import PARENT_TAG, RunRecord, metrics, params, tags
from kvroad.publish.tracking.study_runs import read_records


@pytest.fixture(autouse=True)
def _no_tracking_uri(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def read(folder: Path, **changes: str):
    return read_records(**write_study(folder, **changes), root=folder)


class TestNames:
    @pytest.mark.parametrize(
        "name",
        [
            "pull_ms/p50",
            "kv_pull[16k]{rank=0}:p50",
            "timing(s)/gen",
            "x@y",
            "a:b",
            "100 %",
            "µs",
            "~home",
            "/a",
            "a//b",
            "a/../b",
            "../a",
            "..",
            ".",
            "a/",
            "..a",
        ],
    )
    def test_any_name_is_made_legal_and_taken_back(self, name):
        legal = legal_name(name)
        assert re.fullmatch(r"[/\w.\- :]*", legal)
        assert posixpath.normpath(legal) == legal
        assert not legal.startswith(("/", ".."))
        assert original_name(legal) == name

    def test_our_own_names_stay_readable(self):
        assert legal_name("pull_in_flight_ms/p50") == "pull_in_flight_ms/p50"
        assert legal_name("kv_pull[16k]") == "kv_pull:5B16k:5D"

    def test_names_that_look_alike_stay_apart(self):
        assert legal_name("a:5Bb") != legal_name("a[b")

    def test_long_names_are_cut_told_apart_and_kept(self):
        names = [f"{'[' * 200}{end}" for end in ("x", "y")]
        legal = [legal_name(name) for name in names]
        assert [len(text) for text in legal] == [NAME_LIMIT, NAME_LIMIT]
        assert legal[0] != legal[1]
        kept = tags({}, dict.fromkeys(names, 1.0))
        assert kept[f"long_name/{legal[0][-16:]}"] == names[0]
        assert long_names(["short[0]"]) == {}

    def test_an_empty_name_is_refused(self):
        with pytest.raises(ValueError, match="needs a name"):
            legal_name("")

    def test_long_texts_end_in_an_ellipsis(self):
        assert clip("abcdef", 6) == "abcdef"
        assert clip("abcdefg", 6) == "abcde…"

    def test_texts_that_no_database_takes_are_mended(self):
        assert clip("a\x00b\ud800", 9).encode() == "a\N{REPLACEMENT CHARACTER}b?".encode()


class TestValues:
    def test_absent_numbers_are_left_out(self):
        values = {"a": 1, "b": None, "c": float("nan"), "d": float("inf"), "e": "", "f": 0.0}
        assert metrics(values) == {"a": 1.0, "f": 0.0}

    def test_secrets_are_taken_out_of_tags_and_params(self):
        values = {"overrides": "engine.env.HF_TOKEN=hush", "reason": "http://me:hush@host/x"}
        assert "hush" not in json.dumps([tags(values), params(values)])


class TestTarget:
    def test_default_is_a_database_in_the_project(self, tmp_path):
        target = resolve_target(None, tmp_path)
        assert target.uri == f"sqlite:///{tmp_path}/mlflow.db"
        assert target.artifact_root == tmp_path / "mlartifacts"
        assert target.lock_path == tmp_path / "mlflow.db.lock"

    def test_relative_and_absolute_files_give_one_target(self, tmp_path):
        relative = resolve_target("sqlite:///runs/m.db", tmp_path)
        assert relative == resolve_target(f"sqlite:///{tmp_path}/runs/m.db", tmp_path)
        assert relative.artifact_root == tmp_path / "runs" / "mlartifacts"

    def test_environment_wins(self, tmp_path, monkeypatch):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracker:5001")
        target = resolve_target("sqlite:///mlflow.db", tmp_path)
        assert (target.uri, target.address) == ("http://tracker:5001", ("tracker", 5001))
        assert target.artifact_root is None
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
        assert resolve_target("http://other", tmp_path).address == ("other", 80)

    def test_password_is_for_the_client_only(self, tmp_path):
        target = resolve_target("postgresql+psycopg2://me:hush@db/kv?sslmode=off", tmp_path)
        assert "hush" in target.uri
        assert "hush" not in target.shown + str(target.lock_path)
        assert target.address == ("db", 5432)
        assert target.artifact_root == tmp_path / "mlartifacts"

    @pytest.mark.parametrize(
        ("uri", "text"),
        [
            (
                "file:./mlruns",
                "needs a database such as sqlite:.* MLflow has closed its file store",
            ),
            ("./mlruns", "MLflow has closed its file store"),
            ("sqlit:///m.db", "unknown kind 'sqlit', allowed are .*did you mean 'sqlite'?"),
            ("sqlite://", "needs a file"),
            ("sqlite:///:memory:", "needs a file"),
            ("http:///x", "needs a host"),
            ("http://me:hush@host:port/", "host or port cannot be read"),
        ],
    )
    def test_unusable_targets_are_refused_in_one_line(self, tmp_path, uri, text):
        with pytest.raises(UserError, match=text) as caught:
            resolve_target(uri, tmp_path)
        assert "\n" not in str(caught.value)
        assert "hush" not in str(caught.value)


@pytest.mark.usefixtures("no_git")
class TestRecords:
    def test_proven_cell(self, tmp_path):
        (cell,) = read(tmp_path).cells
        assert (cell.name, cell.status) == ("tcp+threads0 16384 b0", "FINISHED")
        assert cell.params == {
            **{"arm": "tcp+threads0", "transport": "tcp", "variant": "threads0"},
            **{"prompt_tokens": "16384", "block": "0", "nixl": "1.5.1", "ucx": "1.23.0"},
        }
        assert cell.metrics == {
            **{"pull_ms/p50": 12.5, "post_ms/p50": 3.0, "after_post_ms/p50": 9.5},
            **{"descriptors": 4260.0, "n_pulls": 8.0, "n_dropped": 0.0},
        }
        expected = {"cell": CELL, "launch": "tcp+threads0-b0", "study": "loopback", "attempt": "2"}
        expected |= {"session": "july", "outcome": "proven", "road_seen": "tcp", "block": "0"}
        assert {name: cell.tags.get(name) for name in expected} == expected

    @pytest.mark.parametrize("outcome", ["refused", "failed"])
    def test_unproven_cell_is_failed_with_its_reason_and_no_number(self, tmp_path, outcome):
        (cell,) = read(tmp_path, outcome=outcome).cells
        assert (cell.status, dict(cell.metrics)) == ("FAILED", {})
        assert (cell.tags["outcome"], cell.tags["reason"]) == (outcome, "as seen")
        assert QUOTE in cell.tags["mlflow.note.content"]

    def test_artifacts_are_outcome_identity_and_earlier_attempts(self, tmp_path):
        (cell,) = read(tmp_path, identity={"env": {"HF_TOKEN": "hush"}}).cells
        assert set(cell.artifacts) == {"cell.json", "outcome.json", "attempts/1/outcome.json"}
        assert b"hush" not in cell.artifacts["cell.json"]
        assert json.loads(cell.artifacts["cell.json"])["cell"] == CELL

    def test_times_are_those_of_the_cell_s_own_phases(self, tmp_path):
        study = write_study(tmp_path)
        lines = [
            {"event": "start", "time": "2026-01-02T00:00:00Z"},
            {"event": "phase_start", "cell": "another", "time": "2026-01-02T00:00:01Z"},
            {"event": "phase_start", "cell": CELL, "time": "2026-01-02T00:00:02Z"},
            {"event": "phase_end", "cell": CELL, "time": "2026-01-02T00:00:09Z"},
            {"event": "end", "time": "2026-01-02T00:01:00Z"},
        ]
        text = "\n".join([*map(json.dumps, lines), '{"event": "cut'])
        (study["results_dir"] / "cells" / CELL / "raw" / "events.jsonl").write_text(text)
        (cell,) = read_records(**study, root=tmp_path).cells
        assert cell.end_ms - cell.start_ms == 7000
        assert cell.start_ms % 60000 == 2000

    def test_length_is_that_of_the_monotonic_clock(self, tmp_path):
        study = write_study(tmp_path)
        times = [("2026-01-02T00:00:02Z", 500), ("2026-01-02T00:00:02Z", 640_000_500)]
        lines = [{"event": "phase_", "cell": CELL, "time": t, "mono_ns": n} for t, n in times]
        text = "\n".join(map(json.dumps, lines))
        (study["results_dir"] / "cells" / CELL / "raw" / "events.jsonl").write_text(text)
        (cell,) = read_records(**study, root=tmp_path).cells
        assert cell.end_ms - cell.start_ms == 640

    def test_without_events_the_outcome_gives_the_time(self, tmp_path):
        (cell,) = read(tmp_path).cells
        assert cell.start_ms == cell.end_ms == 1767323045000

    def test_summary_has_verdict_report_and_counts(self, tmp_path):
        study = read(tmp_path)
        summary = study.summary
        assert (study.n_not_measured, summary.key) == (1, "loopback+tcp")
        assert summary.metrics == {
            **{"cells_planned": 2.0, "cells_proven": 1.0, "cells_not_measured": 1.0},
            **{"cells_refused": 0.0, "cells_failed": 0.0},
            "pull_ms_ratio/tcp.threads0_vs_shm_p16384": 1.5,
            "pull_ms_ratio_low/tcp.threads0_vs_shm_p16384": 1.4,
            "pull_ms_ratio_high/tcp.threads0_vs_shm_p16384": 1.6,
        }
        assert summary.tags["verdict/pull_ms/tcp.threads0_vs_shm_p16384"] == "slower"
        assert summary.tags["mlflow.note.content"].startswith("# tcp is slower")
        assert "hush" not in summary.tags["overrides"]
        assert set(summary.artifacts) == {"verdict.md", "figures/pull.svg"}

    def test_parent_is_the_session_s(self, tmp_path):
        parent = read(tmp_path).parent
        assert (parent.key, parent.name) == ("july", "loopback july")

    def test_commit_is_the_measuring_one_where_known(self, tmp_path):
        git = {"commit": "abc", "is_dirty": True}
        (cell,) = read(tmp_path, git=git).cells
        assert (cell.tags["git_commit"], cell.tags["git_dirty"]) == ("abc", "true")
        assert cell.tags["mlflow.source.git.commit"] == "abc"

    def test_missing_tables_are_named(self, tmp_path):
        study = write_study(tmp_path)
        (study["tables_dir"] / "verdict.csv").unlink()
        with pytest.raises(UserError, match=r"verdict.csv cannot be read"):
            read_records(**study, root=tmp_path)

    def test_broken_cell_file_is_named(self, tmp_path):
        study = write_study(tmp_path)
        (study["results_dir"] / "cells" / CELL / "cell.json").write_text("{")
        with pytest.raises(UserError, match=r"cell.json is not JSON"):
            read_records(**study, root=tmp_path)


class TestContent:
    RECORD = RunRecord("cell", "c", "c", "FINISHED", 1, 2, metrics={"a": 1.0}, tags={"t": "1"})

    def test_follows_everything_that_is_logged(self):
        changed = [
            RunRecord("cell", "c", "c", "FAILED", 1, 2, metrics={"a": 1.0}, tags={"t": "1"}),
            RunRecord("cell", "c", "c", "FINISHED", 1, 2, metrics={"a": 2.0}, tags={"t": "1"}),
            RunRecord("cell", "c", "c", "FINISHED", 1, 2, metrics={"a": 1.0}, tags={"t": "2"}),
            self.RECORD.child_of("parent"),
        ]
        assert len({self.RECORD.content, *(record.content for record in changed)}) == 5

    def test_parent_is_a_tag(self):
        assert self.RECORD.child_of("p").tags == {"t": "1", PARENT_TAG: "p"}


class TestReceipt:
    def test_nothing_there_is_not_logged(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        assert not is_logged(tmp_path / "receipt.json")
        (tmp_path / "receipt.json").write_text("{")
        assert not is_logged(tmp_path / "receipt.json")
