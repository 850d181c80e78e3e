"""docs/configuration.md lists the keys as they are declared."""

from dataclasses import fields
from pathlib import Path

from kvroad.study.fields import Engine, Host
from tools.configuration_page import PAGE, SECTIONS, renewed

PAGE_TEXT = (Path(__file__).parents[2] / PAGE).read_text()


def test_the_page_has_the_keys_as_they_are_declared() -> None:
    command = "uv run python -m tools.configuration_page"
    assert renewed(PAGE_TEXT) == PAGE_TEXT, f"{PAGE} has drifted; renew it: {command}"


def test_a_key_that_the_page_lacks_is_seen() -> None:
    line = next(line for line in PAGE_TEXT.splitlines() if line.startswith("| `lease_s` "))
    drifted = PAGE_TEXT.replace(f"{line}\n", "")
    assert drifted != PAGE_TEXT
    assert renewed(drifted) == PAGE_TEXT
    assert "number 5 or more | `20.0` |" in line


def test_every_section_of_the_study_has_a_table() -> None:
    assert {Engine, Host} < set(SECTIONS.values())
    for where, owner in SECTIONS.items():
        assert f"### {f'`{where}`' if where else 'At the top'}\n" in PAGE_TEXT
        assert any(f"| `{field.name}` |" in PAGE_TEXT for field in fields(owner))
