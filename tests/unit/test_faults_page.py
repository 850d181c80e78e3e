import importlib.util
import json
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def test_the_page_is_what_the_measured_rows_make() -> None:
    path = REPOSITORY / "tests/live/faults/page.py"
    spec = importlib.util.spec_from_file_location("faults_page", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rows = json.loads((REPOSITORY / "docs/faults.json").read_text(encoding="utf-8"))
    text = (REPOSITORY / "docs/faults.md").read_text(encoding="utf-8")
    assert text == module.page(rows, "faults.json")


def test_nothing_is_left_and_nothing_is_lost_in_any_row() -> None:
    rows = json.loads((REPOSITORY / "docs/faults.json").read_text(encoding="utf-8"))
    assert len(rows) >= 15
    for row in rows:
        assert row["processes_left"] == 0
        assert row["cells_lost"] == 0
        assert row["message"]
