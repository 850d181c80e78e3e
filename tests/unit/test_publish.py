import tarfile
from pathlib import Path

import pytest
from studies import make_study

from kvroad.analysis.saved_study import RAW_NAME
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
    assert archive.parent == reports / "published" / "test"
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path / "elsewhere", filter="data")
    names = {str(p.relative_to(results)) for p in results.rglob("*") if p.is_file()}
    there = tmp_path / "elsewhere" / "results"
    assert names == {str(p.relative_to(there)) for p in there.rglob("*") if p.is_file()}
    assert len(names) == 4 + 3 * 2
    before = archive.read_bytes()
    assert publish(study, make_design(study), results, reports).read_bytes() == before


def tree(folder: Path) -> dict[str, str]:
    """Return the files below a folder as text, but for the archive."""
    files = [p for p in folder.rglob("*") if p.is_file() and p.name != RAW_NAME]
    return {str(path.relative_to(folder)): path.read_text() for path in files}


def test_the_published_copy_is_replaced_whole_and_the_own_report_stays(
    tmp_path: Path, study, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, reports = tmp_path / "results", tmp_path / "reports"
    own, published = reports / "test", reports / "published" / "test"
    measure(results, study, n=3)
    (own / "figures").mkdir(parents=True)
    (own / "index.html").write_text('<p id="raw">over there</p>')
    (own / "figures" / "a.svg").write_text("a")
    (own / "figures" / ".snakemake_timestamp").write_text("")
    before = tree(own)
    publish(study, make_design(study), results, reports)
    assert tree(own) == before
    assert set(tree(published)) == {"index.html", "figures/a.svg"}
    assert f'href="{RAW_NAME}"' in (published / "index.html").read_text()

    (published / "README.md").write_text("by hand")
    (own / "README.md").write_text("a note of one's own")
    (own / "figures" / "a.svg").rename(own / "figures" / "b.svg")
    publish(study, make_design(study), results, reports)
    after = tree(published)
    assert set(after) == {"index.html", "figures/b.svg", "README.md"}
    assert after["README.md"] == "by hand"

    # What ends on the way leaves the published one; what ends between the two renames is mended.
    with monkeypatch.context() as patched:
        patched.setattr("kvroad.publish.archive.lzma.compress", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            publish(study, make_design(study), results, reports)
    assert tree(published) == after
    published.rename(published.with_name("test.before.tmp"))
    publish(study, make_design(study), results, reports)
    assert tree(published) == after
    assert [path.name for path in published.parent.iterdir()] == ["test"]


def test_without_a_report_or_a_cell_there_is_nothing_to_publish(tmp_path: Path, study) -> None:
    results, reports = tmp_path / "results", tmp_path / "reports"
    with pytest.raises(UserError, match="no report yet; run the study first"):
        publish(study, make_design(study), results, reports)
    (reports / "test").mkdir(parents=True)
    (reports / "test" / "index.html").write_text("page")
    measure(results, study, n=0)
    with pytest.raises(UserError, match="no cell of test was measured here"):
        publish(study, make_design(study), results, reports)
