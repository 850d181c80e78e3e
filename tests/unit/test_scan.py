"""Scanning a log in blocks gives what reading it line by line gives."""

import io
from pathlib import Path

import pytest

from kvroad.evidence import scan
from kvroad.evidence.scan import LineScan
from kvroad.evidence.ucx import parse_file, parse_lines

SAMPLES = Path(__file__).parent.parent / "data" / "samples"
LOGS = sorted([*SAMPLES.rglob("*.log"), *SAMPLES.glob("ucx/*.txt")])
TEXT = b"one\nneedle two\n\nthree\xff needle\nfour\nlast needle"


@pytest.mark.parametrize("block", [1, 2, 3, 7, 1 << 20])
@pytest.mark.parametrize("text", [TEXT, TEXT + b"\n", b"", b"\n", b"needle", b"no line end"])
def test_lines_numbers_and_the_end_do_not_depend_on_the_block(
    block: int, text: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "BLOCK_BYTES", block)
    lines = text.removesuffix(b"\n").split(b"\n") if text else []
    seen: list[bytes] = []
    found = LineScan(io.BytesIO(text), [b"needle", b"eed"], keep_last=2, see=seen.append)
    assert list(found) == [(n, x) for n, x in enumerate(lines, 1) if b"needle" in x]
    assert found.n_lines == len(lines)
    assert found.last == lines[-2:]
    assert b"".join(seen) == text


@pytest.mark.parametrize("block", [1, 3, 4, 5, 64])
def test_of_an_endless_line_the_beginning_is_given(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "BLOCK_BYTES", block)
    text = b"needle " + b"x" * 50 + b" needle\n\nneedle\n" + b"y" * 50
    found = LineScan(io.BytesIO(text), [b"needle"], keep_last=2, longest=8)
    assert list(found) == [(1, b"needle x"), (3, b"needle")]
    assert (found.n_lines, found.last) == (4, [b"needle", b"y" * 8])


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.name)
def test_a_log_read_in_blocks_is_the_log_read_by_lines(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "BLOCK_BYTES", 4096)
    with path.open(encoding="utf-8", errors="replace", newline="\n") as lines:
        by_lines = parse_lines(lines, path.name)
    with path.open("rb") as file:
        assert parse_file(file, path.name) == by_lines
