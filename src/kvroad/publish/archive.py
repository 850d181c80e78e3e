"""Publish a study: its report with the raw files that it was made from, ready to commit."""

from __future__ import annotations

import io
import lzma
import shutil
import tarfile
from pathlib import Path

from kvroad.agent.manifest import MANIFEST
from kvroad.analysis.saved_study import RAW_NAME
from kvroad.errors import UserError
from kvroad.publish.page.raw_link import with_raw_link
from kvroad.results import cell_dir, next_attempt, outcome_of, receipt_path
from kvroad.study.design import Design
from kvroad.study.fields import Study
from kvroad.study.name import PUBLISHED, study_slug

__all__ = ["publish"]


def publish(study: Study, design: Design, results_dir: Path, reports_dir: Path) -> Path:
    """Copy the report of a study to the published ones, with the raw files of its cells.

    Unpacked at the root of a checkout they are what the workflow finds when it looks for
    measured cells, so that the same command makes the same report from them. The archive
    is the same whenever the files are. What was published of the study before is replaced as
    a whole, but for its README.md.

    Returns
    -------
    Path
        The archive with the raw files.

    Raises
    ------
    UserError
        When the study has no report yet, or no cell of it was measured.
    """
    report = reports_dir / study_slug(study)
    if not (report / "index.html").exists():
        raise UserError(f"{report}: no report yet; run the study first")
    files = _files(study, design, results_dir)
    if not any(path.name == MANIFEST for path in files):
        raise UserError(f"{results_dir}: no cell of {study.name} was measured here")
    target = reports_dir / PUBLISHED / report.name
    made = target.with_name(f"{report.name}.tmp")
    shutil.rmtree(made, ignore_errors=True)
    shutil.copytree(report, made, ignore=shutil.ignore_patterns(".snakemake_timestamp"))
    _archive(files, results_dir, made / RAW_NAME)
    page = made / "index.html"
    page.write_text(with_raw_link(page.read_text(encoding="utf-8")), encoding="utf-8")
    _replace(target, made)
    return target / RAW_NAME


def _archive(files: list[Path], results_dir: Path, target: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in files:
            entry = tarfile.TarInfo(str(Path("results") / path.relative_to(results_dir)))
            entry.size = path.stat().st_size
            entry.mode = 0o644
            with open(path, "rb") as file:
                archive.addfile(entry, file)
    target.write_bytes(lzma.compress(buffer.getvalue(), preset=9 | lzma.PRESET_EXTREME))


def _replace(target: Path, made: Path) -> None:
    # A folder that is not empty cannot be renamed over: the old one steps aside, and is back
    # in its place at the next call should this one end in between.
    before = target.with_name(f"{target.name}.before.tmp")
    if before.exists() and not target.exists():
        before.rename(target)
    shutil.rmtree(before, ignore_errors=True)
    if target.exists():
        if (readme := target / "README.md").exists():
            shutil.copy2(readme, made)
        target.rename(before)
    made.rename(target)
    shutil.rmtree(before, ignore_errors=True)


def _files(study: Study, design: Design, results_dir: Path) -> list[Path]:
    found: list[Path] = []
    for launch in design.launches:
        cells = [cell.id for cell in launch.cells]
        attempt = next_attempt(results_dir, cells, retry="none")
        receipt = receipt_path(results_dir, launch.id, attempt)
        found += [receipt] if receipt.exists() else []
        for cell in cells:
            if outcome_of(results_dir, cell) is not None:
                found += [p for p in cell_dir(results_dir, cell).rglob("*") if p.is_file()]
    return sorted(found)
