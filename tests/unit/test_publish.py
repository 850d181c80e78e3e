import tarfile
from pathlib import Path

import pytest
from studies import make_study

from kvroad.errors import UserError
from kvroad.files import write_json
from kvroad.publish.archive import publish
from kvroad.results import cell_dir, receipt_path
from kvroad.study.design import make_design


def measure(results: Path, study, n: int) -> None:
    """Lay down ``n`` proven cells, and the receipts of all launches."""
    for place, launch in enumerate(make_design(study).launches):
        write_json(receipt_path(results, launch.id, 1), {"launch": launch.id})
        if place < n:
            folder = cell_dir(results, launch.cells[0].id)
            write_json(folder / "outcome.json", {"outcome": "proven", "attempt": 1})
            write_json(folder / "raw" / "manifest.json", {})


@pytest.fixture
def study():
    return make_study(prompt_tokens=[4096], launches=2)


def test_the_archive_unpacks_to_what_the_workflow_looks_for(tmp_path: Path, study) -> None:
    results, reports = tmp_path / "results", tmp_path / "reports"
    measure(results, study, n=3)
    (reports / "test").mkdir(parents=True)
    (reports / "test" / "index.html").write_text("page")
    archive = publish(study, make_design(study), results, reports)
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path / "elsewhere", filter="data")
    names = {str(p.relative_to(results)) for p in results.rglob("*") if p.is_file()}
    there = tmp_path / "elsewhere" / "results"
    assert names == {str(p.relative_to(there)) for p in there.rglob("*") if p.is_file()}
    assert len(names) == 4 + 3 * 2
    before = archive.read_bytes()
    assert publish(study, make_design(study), results, reports).read_bytes() == before


def test_without_a_report_or_a_cell_there_is_nothing_to_publish(tmp_path: Path, study) -> None:
    results, reports = tmp_path / "results", tmp_path / "reports"
    with pytest.raises(UserError, match="no report yet; run the study first"):
        publish(study, make_design(study), results, reports)
    (reports / "test").mkdir(parents=True)
    (reports / "test" / "index.html").write_text("page")
    measure(results, study, n=0)
    with pytest.raises(UserError, match="no cell of test was measured here"):
        publish(study, make_design(study), results, reports)
