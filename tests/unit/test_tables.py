"""Cell folders to tables: what counts, what is dropped, what is kept and marked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from synthetic import (
    DESCRIPTOR_BYTES,
    design_data,
    outcome,
    planned,
    pull_rows,
    refused_outcome,
    write_cell,
    write_design,
    write_manifest,
)

from kvroad.analysis import tables
from kvroad.analysis.tables import DesignCell, cells_frame, parse_design, pulls_frame, read_design
from kvroad.analysis.tables.metrics import METRICS
from kvroad.errors import UserError


def constant(cell: DesignCell, phase: str, pull: int) -> tuple[float, float]:
    return 1000.0, 4000.0


@pytest.fixture
def one() -> DesignCell:
    return planned(["shm"], [4096], 1)[0]


def test_launch_values_are_medians_of_their_own_phase(tmp_path: Path, one: DesignCell) -> None:
    xfers = {"warmup": [90e3, 80e3], "one_at_a_time": [3000, 5000, 4000], "in_flight": [7e3] * 3}
    rows = pull_rows(one, lambda _, phase, pull: (1000, xfers[phase][pull]), pulls=3)
    write_cell(tmp_path, one, rows)
    row = cells_frame([one], tmp_path).iloc[0]
    assert row["pull_ms"] == 4.0
    assert row["post_ms"] == 1.0
    assert row["after_post_ms"] == 3.0
    assert row["pull_in_flight_ms"] == 7.0
    assert row["after_post_in_flight_ms"] == 6.0
    assert row["goodput_gb_per_s"] == 2340 * DESCRIPTOR_BYTES / 4000 / 1000
    assert (row["n_pulls"], row["n_dropped"]) == (6, 0)


def test_ranks_are_rows_of_one_median(tmp_path: Path, one: DesignCell) -> None:
    rows = pull_rows(one, constant, pulls=1, ranks=3)
    for row in rows:
        row["xfer_us"] = [2000.0, 9000.0, 4000.0][row["rank"]]
    write_cell(tmp_path, one, rows)
    assert cells_frame([one], tmp_path)["pull_ms"].tolist() == [4.0]
    assert set(pulls_frame([one], tmp_path)["rank"]) == {0, 1, 2}


def test_warm_up_is_kept_and_marked(tmp_path: Path, one: DesignCell) -> None:
    write_cell(tmp_path, one, pull_rows(one, constant, pulls=2))
    pulls = pulls_frame([one], tmp_path, study="loopback")
    assert pulls.groupby("phase")["is_warmup"].all().to_dict() == {
        "warmup": True,
        "one_at_a_time": False,
        "in_flight": False,
    }
    assert not pulls["is_dropped"].any()
    assert set(pulls["study"]) == {"loopback"}
    assert pulls["after_post_us"].tolist() == [3000.0] * 6


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"post_us": 4000.5}, "post exceeds transfer"),
        ({"xfer_us": 0.0, "post_us": 0.0}, "time not above zero"),
        ({"post_us": -1.0}, "time not above zero"),
        ({"xfer_us": None}, "no telemetry"),
        ({"state": "ERR"}, "pull failed"),
        ({"verified": False}, "bytes differ from the pattern"),
    ],
)
def test_bad_rows_are_dropped_and_counted(
    tmp_path: Path, one: DesignCell, change: dict[str, object], reason: str
) -> None:
    rows = pull_rows(one, constant, pulls=4)
    bad = next(row for row in rows if row["phase"] == "one_at_a_time")
    bad |= {"xfer_us": 4000.0} | change
    write_cell(tmp_path, one, rows)
    pulls = pulls_frame([one], tmp_path)
    assert pulls.loc[pulls["is_dropped"], "drop_reason"].tolist() == [reason]
    row = cells_frame([one], tmp_path).iloc[0]
    assert (row["n_pulls"], row["n_dropped"], row["pull_ms"]) == (8, 1, 4.0)


def test_post_equal_to_transfer_is_no_error(tmp_path: Path, one: DesignCell) -> None:
    write_cell(tmp_path, one, pull_rows(one, lambda *_: (28489, 28489), pulls=2))
    row = cells_frame([one], tmp_path).iloc[0]
    assert (row["after_post_ms"], row["n_dropped"]) == (0.0, 0)


def test_unproven_cells_carry_no_number(tmp_path: Path, one: DesignCell) -> None:
    write_cell(tmp_path, one, pull_rows(one, constant, pulls=2), result=refused_outcome())
    pulls = pulls_frame([one], tmp_path)
    assert len(pulls) == 6
    assert set(pulls["drop_reason"]) == {"cell not proven"}
    assert set(pulls["outcome"]) == {"refused"}
    row = cells_frame([one], tmp_path).iloc[0]
    assert row[[m.name for m in METRICS if m.of_pulls]].isna().all()
    assert row["road_seen"] == "tcp"
    assert row["road_expected"] == "rc_mlx5, rc_verbs"


def test_planned_cells_without_folder_are_not_measured(tmp_path: Path) -> None:
    cells = planned(["shm", "tcp"], [4096], 2)
    write_cell(tmp_path, cells[0], pull_rows(cells[0], constant, pulls=1))
    layout = {4096: {"descriptors": 2340, "descriptor_bytes": 131072, "bytes": 306708480}}
    frame = cells_frame(cells, tmp_path, kv_layout=layout)
    assert frame["outcome"].tolist() == ["proven"] + ["not measured"] * 3
    assert frame["descriptors"].tolist() == [2340] * 4
    assert frame["pull_bytes"].tolist() == [306708480] * 4
    assert frame["run_id"].isna().tolist() == [False, True, True, True]


def test_nothing_measured_gives_whole_tables(tmp_path: Path) -> None:
    cells = planned(["shm", "tcp"], [4096], 2)
    frame = cells_frame(cells, tmp_path)
    assert frame["outcome"].tolist() == ["not measured"] * 4
    assert frame["pull_ms"].isna().all()
    assert pulls_frame(cells, tmp_path).empty


def _edit_pulls(raw: Path) -> None:
    path = raw / "pulls-0.jsonl"
    path.write_text(path.read_text().replace("4000.0", "3000.0"))


def _remove_manifest(raw: Path) -> None:
    (raw / "manifest.json").unlink()


def _remove_pulls(raw: Path) -> None:
    (raw / "pulls-0.jsonl").unlink()


@pytest.mark.parametrize("damage", [_edit_pulls, _remove_manifest, _remove_pulls])
def test_raw_folder_unlike_its_manifest_does_not_exist(
    tmp_path: Path, one: DesignCell, damage: Callable[[Path], None]
) -> None:
    folder = write_cell(tmp_path, one, pull_rows(one, constant, pulls=1))
    damage(folder / "raw")
    row = cells_frame([one], tmp_path).iloc[0]
    assert row["outcome"] == "not measured"
    assert row["reason"].startswith("raw folder is not whole")
    assert pd.isna(row["pull_ms"])


def test_refusal_without_raw_files_stays_a_refusal(tmp_path: Path, one: DesignCell) -> None:
    folder = tmp_path / "cells" / one.cell
    folder.mkdir(parents=True)
    (folder / "outcome.json").write_text(json.dumps(refused_outcome()))
    assert cells_frame([one], tmp_path)["outcome"].tolist() == ["refused"]


def test_rows_of_other_cells_of_the_launch_are_left_out(tmp_path: Path) -> None:
    cells = planned(["shm"], [4096, 8192], 1)
    both = [row for cell in cells for row in pull_rows(cell, constant, pulls=1)]
    for cell in cells:
        write_cell(tmp_path, cell, both)
    assert pulls_frame(cells, tmp_path).groupby("cell").size().tolist() == [4, 4]


def test_executed_order_ranks_first_measured_phases(tmp_path: Path) -> None:
    cells = planned(["shm", "tcp"], [4096], 2)
    for cell, second in zip(cells, [30, 10, 50, 20], strict=True):
        write_cell(tmp_path, cell, pull_rows(cell, constant, pulls=1), order=second)
    assert cells_frame(cells, tmp_path)["executed_order"].tolist() == [3, 1, 4, 2]


def test_unreadable_pull_row_names_its_cell(tmp_path: Path) -> None:
    cells = planned(["shm", "tcp"], [4096], 1)
    for cell in cells:
        write_cell(tmp_path, cell, pull_rows(cell, constant, pulls=1))
    raw = tmp_path / "cells" / cells[1].cell / "raw"
    (raw / "pulls-0.jsonl").write_text('{"cell": "x", "post_us": "soon"}\n')
    write_manifest(raw)
    with pytest.raises(UserError, match=f"pulls of cell {cells[1].cell}"):
        pulls_frame(cells, tmp_path)


def test_provenance_counts_values_and_keeps_secrets_out(tmp_path: Path) -> None:
    cells = planned(["shm", "tcp"], [4096], 1)
    write_cell(tmp_path, cells[0], pull_rows(cells[0], constant, pulls=1), order=1)
    write_cell(tmp_path, cells[1], [], order=2, facts={"kernel": "6.2.0"})
    out = tmp_path / "out"
    tables.build(write_design(tmp_path / "design.json", cells), tmp_path, out)
    facts = json.loads((out / "provenance.json").read_text())
    kernels = [{"value": "6.1.0", "cells": 1}, {"value": "6.2.0", "cells": 1}]
    assert facts["kernel"] == kernels
    assert facts["versions.ucx"] == [{"value": "1.23.0", "cells": 2}]
    assert facts["git.commit"] == [{"value": "abc123", "cells": 2}]
    assert [v["value"] for v in facts["env.UCX_TLS"]] == ["shm,tcp", "tcp,tcp"]
    assert "secret" not in json.dumps(facts)
    assert "load_1_min" not in facts


def test_ucx_version_is_read_from_the_processes_own_logs(tmp_path: Path) -> None:
    cells = planned(["shm", "tcp"], [4096], 1)
    line = "[1.5] [vm:7:0]  ucp_context.c:2753 UCX  INFO  Version {} (loaded from /opt/libucp.so)\n"
    for cell, versions in zip(cells, (["1.23.0"] * 2, ["1.23.0", "1.21.0"]), strict=True):
        folder = write_cell(tmp_path, cell, [], facts={"versions": {"nixl": "1.5.1"}})
        for name, version in zip(("decode-0", "prefill-0"), versions, strict=True):
            text = "unrelated Version 9\n" + line.format(version)
            (folder / "raw" / f"{name}.log").write_text(text)
        write_manifest(folder / "raw")
    assert cells_frame(cells, tmp_path)["ucx_version"].tolist() == ["1.23.0", "1.21.0, 1.23.0"]


def test_build_writes_equal_bytes_twice(tmp_path: Path) -> None:
    cells = planned(["shm", "tcp"], [4096, 8192], 2)
    for number, cell in enumerate(cells):
        write_cell(tmp_path, cell, pull_rows(cell, constant, pulls=3), order=number)
    design = write_design(tmp_path / "design.json", cells)
    for name in ("first", "second"):
        tables.build(design, tmp_path, tmp_path / name)
    names = sorted(path.name for path in (tmp_path / "first").iterdir())
    assert names == sorted(
        [f"{n}.{s}" for n in ("pulls", "cells", "witnesses") for s in ("csv", "parquet")]
        + ["provenance.json"]
    )
    for name in names:
        first, second = (tmp_path / d / name for d in ("first", "second"))
        assert first.read_bytes() == second.read_bytes()


def test_parquet_and_csv_hold_the_same_cells(tmp_path: Path) -> None:
    cells = planned(["shm"], [4096], 2)
    write_cell(tmp_path, cells[0], pull_rows(cells[0], constant, pulls=3))
    tables.build(write_design(tmp_path / "d.json", cells), tmp_path, tmp_path)
    parquet, csv = pd.read_parquet(tmp_path / "cells.parquet"), pd.read_csv(tmp_path / "cells.csv")
    assert parquet.columns.tolist() == csv.columns.tolist()
    pd.testing.assert_series_equal(parquet["pull_ms"], csv["pull_ms"])
    assert parquet["attempt"].tolist()[0] == 1


def test_witnesses_are_a_row_each(tmp_path: Path, one: DesignCell) -> None:
    count = {"name": "use_counts", "status": "unavailable", "expected": "", "seen": ""}
    table = outcome()["witnesses"][0]
    write_cell(tmp_path, one, [], result=outcome(witnesses=[table, count]))
    tables.build(write_design(tmp_path / "d.json", [one]), tmp_path, tmp_path)
    witnesses = pd.read_csv(tmp_path / "witnesses.csv")
    assert witnesses["name"].tolist() == ["protocol_table", "use_counts"]
    assert witnesses["where"].fillna("").tolist() == ["decode-0.log:41", ""]


class TestDesign:
    def test_without_contrasts_every_arm_meets_the_baseline(self) -> None:
        design = parse_design(design_data(planned(["shm", "tcp", "tcp+b16"], [4096], 1)))
        assert design.contrasts == (("tcp", "shm"), ("tcp+b16", "shm"))
        assert design.arms == ["shm", "tcp", "tcp+b16"]

    def test_unknown_arm_is_answered_in_one_line(self) -> None:
        data = design_data(planned(["shm", "tcp"], [4096], 1), contrasts=[["tpc", "shm"]])
        with pytest.raises(UserError) as error:
            parse_design(data, "design.json")
        assert "'tpc' is no arm" in str(error.value)
        assert "did you mean 'tcp'?" in str(error.value)
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize(
        ("change", "text"),
        [
            ({"cells": [{"cell": "x"}]}, "field 'launch' is missing"),
            ({"claims": {"alpha": 2}}, "claims.alpha is 2.0"),
            ({"claims": {"margins": {"pull_ms": "wide"}}}, "could not convert"),
            (
                {"claims": {"quoted": {"source": "s", "ratios": {"pul_ms": {}}}}},
                "did you mean 'pull_ms'?",
            ),
        ],
    )
    def test_bad_fields_are_named(self, change: dict[str, object], text: str) -> None:
        data = design_data(planned(["shm", "tcp"], [4096], 1)) | change
        with pytest.raises(UserError, match=text.replace("?", r"\?")):
            parse_design(data)

    def test_cell_planned_twice_is_refused(self) -> None:
        cells = planned(["shm"], [4096], 1)
        with pytest.raises(UserError, match="planned twice"):
            parse_design(design_data([*cells, *cells]))

    def test_missing_file_is_a_user_error(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="cannot be read"):
            read_design(tmp_path / "no.json")

    def test_margin_falls_back_to_the_key_of_the_kind(self) -> None:
        design = parse_design(design_data(planned(["shm"], [4096], 1)))
        assert tables.margin(design.margins, tables.metric("pull_in_flight_ms")) == 0.05
        assert tables.margin(design.margins, tables.metric("goodput_gb_per_s")) != 0.05
