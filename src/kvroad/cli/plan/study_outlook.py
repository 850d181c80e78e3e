"""All that ``kvroad plan`` says of a study, from the configuration and the results here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvroad.analysis.saved_study import SavedStudy
from kvroad.cli.plan.duration import Duration, duration_of
from kvroad.cli.plan.outlook import (
    ArmOutlook,
    LaunchRow,
    MatrixRow,
    Pools,
    expected,
    matrix,
    memory,
    to_run,
)
from kvroad.cli.plan.power import Power, power_of
from kvroad.cli.status import REPORTS, RESULTS
from kvroad.plan import Plan
from kvroad.publish.archive import ARCHIVE
from kvroad.results import outcome_of
from kvroad.study.design import Cell, Design, Launch
from kvroad.study.fields import Study
from kvroad.study.name import PUBLISHED, study_slug
from kvroad.study.sides import hosts_of

__all__ = ["HostName", "Published", "StudyOutlook", "outlook_of"]

_SCHEMA = "kvroad.plan/1"


@dataclass(frozen=True)
class HostName:
    """A host of the study and how it is reached."""

    name: str
    connection: str


@dataclass(frozen=True)
class Published:
    """An archive beside a report, and how many cells of the study it holds that are not here."""

    archive: str
    cells: int


@dataclass(frozen=True)
class StudyOutlook:
    """All that ``kvroad plan --json`` prints, ``commands`` apart, in its order.

    ``price_per_hour`` is that of the one host, or of each host by its name; ``cost`` is in the
    same currency and None where a price or the time is not known.
    """

    schema: str
    study: str
    host: HostName
    hosts: list[HostName]
    engine: str
    model: str
    baseline: str
    launches: int
    cells: int
    matrix: list[MatrixRow]
    published: Published | None
    to_run: list[LaunchRow]
    time: Duration
    memory: Pools | None
    price_per_hour: float | dict[str, float | None] | None
    cost: float | None
    arms: list[ArmOutlook]
    power: Power


def outlook_of(
    study: Study,
    design: Design,
    plans: Sequence[tuple[Launch, list[Cell], Plan]],
    spread_from: str | None,
) -> StudyOutlook:
    """Return what a study would run and show; ``plans`` holds one of each arm to be shown.

    Raises
    ------
    UserError
        When ``spread_from`` names no study with a spread.
    """
    hosts, rows = hosts_of(study), to_run(study, design, RESULTS)
    prices = {host.name: host.price_per_hour for host in hosts}
    duration = duration_of(design, rows, RESULTS)
    return StudyOutlook(
        schema=_SCHEMA,
        study=study_slug(study),
        host=HostName(study.host.name, study.host.connection),
        hosts=[HostName(host.name, host.connection) for host in hosts],
        engine=study.engine.name,
        model=study.model.name,
        baseline=study.baseline,
        launches=study.launches,
        cells=len(design.cells),
        matrix=matrix(design, RESULTS),
        published=_published(study, [cell.id for cell in design.cells]),
        to_run=rows,
        time=duration,
        memory=memory(study, design),
        price_per_hour=study.host.price_per_hour if len(prices) == 1 else prices,
        cost=_cost(prices, duration),
        arms=[expected(study, launch, plan) for launch, _, plan in plans],
        power=power_of(study, REPORTS, RESULTS, spread_from),
    )


def _cost(prices: Mapping[str, float | None], duration: Duration) -> float | None:
    """Return what the time of every host costs; None where a price or the time is not known."""
    if duration.seconds is None or None in prices.values():
        return None
    return sum(
        (price or 0.0) * duration.by_host.get(host, 0.0) / 3600 for host, price in prices.items()
    )


def _published(study: Study, cells: list[str]) -> Published | None:
    """Return the report whose raw files hold cells of the study that are not taken in here."""
    report = SavedStudy(study.name, REPORTS / PUBLISHED / study.name)
    if not report.has("cells") or not (archive := report.folder / ARCHIVE).is_file():
        return None
    there = set(report.table("cells")["cell"]) & set(cells)
    missing = [cell for cell in there if outcome_of(RESULTS, cell) is None]
    return Published(str(archive), len(missing)) if missing else None
