"""Kinds are found where they are declared, by name."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvroad.errors import UserError
from kvroad.registry import kinds_in
from kvroad.study.kinds import Registry

DECLARED = "from test_registry import Toy\n"


@dataclass(frozen=True)
class Toy:
    name: str


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "toys_of_a_test"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "a.py").write_text(DECLARED + 'BALL = Toy("ball")\nNAME = "no kind"\n')
    (folder / "b.py").write_text(
        DECLARED + 'from toys_of_a_test.a import BALL\nKITE = Toy("kite")\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder
    for name in [name for name in sys.modules if name.startswith(folder.name)]:
        del sys.modules[name]


def test_kinds_are_found_by_name_each_once(package: Path):
    assert kinds_in(package.name, Toy) == {"ball": Toy("ball"), "kite": Toy("kite")}


def test_two_of_one_name_are_refused(package: Path):
    (package / "c.py").write_text(DECLARED + 'OTHER = Toy("kite")\n')
    with pytest.raises(ValueError, match=r"toys_of_a_test\.c: a second Toy 'kite'"):
        kinds_in(package.name, Toy)


def test_an_unknown_name_is_one_line_with_the_nearest(package: Path):
    toys = Registry("toy.name", package.name, Toy)
    assert list(toys) == ["ball", "kite"]
    assert "kites" not in toys
    with pytest.raises(UserError) as raised:
        toys["kites"]
    assert str(raised.value) == (
        "toy.name: 'kites' is not allowed; did you mean 'kite'? (allowed: ball, kite)"
    )
