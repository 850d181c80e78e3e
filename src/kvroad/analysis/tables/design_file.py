"""The design that tables are filled against: planned cells, contrasts, margins, quotes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from kvroad.analysis.tables.metrics import Metric, metric
from kvroad.errors import UserError, nearest

__all__ = [
    "ArmFacts",
    "DesignCell",
    "DesignFile",
    "Quoted",
    "margin",
    "parse_design",
    "read_design",
]


@dataclass(frozen=True)
class DesignCell:
    """One cell of the design, measured or not."""

    cell: str
    launch: str
    arm: str
    transport: str
    variant: str
    prompt_tokens: int
    block: int
    host: str = ""


@dataclass(frozen=True)
class ArmFacts:
    """What an arm is by its transport and its variant.

    Parameters
    ----------
    declares
        Settings that its transport or its variant sets, such as ``env.UCX_TLS`` or
        ``workload.block_tokens``: in these and in nothing else may two arms differ.
    series
        Arms of one series differ in how the bytes are cut alone: one cost model fits them.
    nominal_gb_per_s
        What the link is sold as, where the host's configuration says so.
    """

    declares: frozenset[str] = frozenset({"env.UCX_TLS"})
    series: str = ""
    operation: str = ""
    nominal_gb_per_s: float | None = None


class Setup(TypedDict, total=False):
    """What a study must be to test a claim: part of the GPUs' names, model, engine or engines."""

    gpu: str
    model: str | list[str]
    engine: str | list[str]


class Contrast(TypedDict):
    """Two arms, as patterns of their names."""

    arm: str
    baseline: str


class PublishedClaim(TypedDict):
    """One conclusion of a publication.

    Judged by what it has of: ``ratio`` (lowest and highest published), ``share_above``
    (operations' share of a pull), ``same``, or else as *faster*. ``near`` is what is shown
    where the study has no such contrast.
    """

    name: str
    says: str
    metric: str
    arm: str
    baseline: NotRequired[str]
    ratio: NotRequired[tuple[float, float]]
    share_above: NotRequired[float]
    same: NotRequired[bool]
    is_tested: NotRequired[bool]
    match: NotRequired[Setup]
    near: NotRequired[Contrast]


@dataclass(frozen=True)
class Quoted:
    """Ratios that somebody else published, shown beside ours and never mixed with them.

    ``ratios`` maps metric name, then prompt tokens, to the ratio of ``arm`` to ``baseline``;
    ``setup`` says what it was measured on, ``claims`` what was concluded, ``guide`` what a
    vendor's guide says of the transports (its source, and rows marked as measured or not).
    """

    source: str
    arm: str
    baseline: str
    ratios: Mapping[str, Mapping[int, float]]
    # Shown as the claims' file has them, whatever is in it.
    setup: Mapping[str, Any] = field(default_factory=dict)
    claims: tuple[PublishedClaim, ...] = ()
    guide: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DesignFile:
    """What ``design.json`` says.

    ``kv_layout`` maps prompt tokens to ``descriptors``, ``descriptor_bytes`` and ``bytes``
    of one pull.
    """

    study: str
    study_name: str
    baseline: str
    contrasts: tuple[tuple[str, str], ...]
    cells: tuple[DesignCell, ...]
    alpha: float
    margins: Mapping[str, float]
    quoted: Quoted | None = None
    overrides: tuple[str, ...] = ()
    kv_layout: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    arm_facts: Mapping[str, ArmFacts] = field(default_factory=dict)
    engine: str = ""
    model: str = ""

    def facts_of(self, arm: str) -> ArmFacts:
        """Return what is known of an arm; by itself it is a series of its own."""
        return self.arm_facts.get(arm, ArmFacts(series=arm))

    @property
    def arms(self) -> list[str]:
        """Arms in planned order, the baseline first."""
        planned = dict.fromkeys(cell.arm for cell in self.cells)
        return sorted(planned, key=lambda arm: arm != self.baseline)

    @property
    def shown_arms(self) -> list[str]:
        """Arms as they were asked for: the baseline, then those of the contrasts, then others."""
        named = dict.fromkeys([self.baseline, *(arm for arm, _ in self.contrasts), *self.arms])
        return list(named)

    @property
    def prompt_tokens(self) -> list[int]:
        """Prompt lengths, ascending."""
        return sorted({cell.prompt_tokens for cell in self.cells})

    def shared_prompt_tokens(self, arms: Iterable[str]) -> list[int]:
        """Return the prompt lengths that every one of the arms is planned at, ascending."""
        planned = {(cell.arm, cell.prompt_tokens) for cell in self.cells}
        arms = list(arms)
        return [t for t in self.prompt_tokens if all((arm, t) in planned for arm in arms)]


def read_design(path: Path) -> DesignFile:
    """Read ``design.json``.

    Raises
    ------
    UserError
        When the file is no design, or a contrast names an arm that is not planned.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise UserError(f"design {path} cannot be read: {error}") from error
    return parse_design(data, str(path))


def parse_design(data: Mapping[str, Any], where: str = "design") -> DesignFile:
    """Build a DesignFile from its JSON object; without contrasts every arm meets the baseline."""
    try:
        cells = tuple(_planned_cell(cell) for cell in data["cells"])
        claims = data["claims"]
        baseline = str(data["baseline"])
        pairs = data.get("contrasts") or _against(baseline, cells)
        design = DesignFile(
            study=str(data["study"]),
            study_name=str(data.get("study_name", data["study"])),
            baseline=baseline,
            contrasts=tuple((str(arm), str(base)) for arm, base in pairs),
            cells=cells,
            alpha=float(claims.get("alpha", 0.05)),
            margins={str(k): float(v) for k, v in (claims.get("margins") or {}).items()},
            quoted=_quoted(claims.get("quoted")),
            overrides=tuple(str(o) for o in data.get("overrides") or ()),
            kv_layout={int(k): v for k, v in (data.get("kv_layout") or {}).items()},
            arm_facts={str(k): _arm_facts(v) for k, v in (data.get("arms") or {}).items()},
            engine=str(data.get("engine", "")),
            model=str(data.get("model", "")),
        )
    except KeyError as error:
        raise UserError(f"{where}: field {error} is missing") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{where}: {error}") from error
    _check(design, where)
    return design


def margin(margins: Mapping[str, float], what: Metric) -> float:
    """Return the equivalence margin of a metric as a share; NaN where it has none.

    ``margins`` are those of a study's claims, by a metric's name or its margin key; the
    metric's own default holds where they have neither.
    """
    by_key = margins.get(what.margin_key, what.default_margin)
    return margins.get(what.name, by_key)


def _planned_cell(data: Mapping[str, Any]) -> DesignCell:
    values = {f.name: data[f.name] for f in fields(DesignCell) if f.name != "host"}
    values["host"] = str(data.get("host", ""))
    numbers = {name: int(values[name]) for name in ("prompt_tokens", "block")}
    return DesignCell(**{**values, **numbers})


def _arm_facts(data: Mapping[str, Any]) -> ArmFacts:
    return ArmFacts(
        frozenset(str(name) for name in data["declares"]),
        str(data["series"]),
        str(data["operation"]),
        data.get("nominal_gb_per_s"),
    )


def _against(baseline: str, cells: tuple[DesignCell, ...]) -> list[tuple[str, str]]:
    arms = dict.fromkeys(cell.arm for cell in cells)
    return [(arm, baseline) for arm in arms if arm != baseline]


def _quoted(data: Mapping[str, Any] | None) -> Quoted | None:
    if not data:
        return None
    ratios = {
        str(name): {int(tokens): float(ratio) for tokens, ratio in by_prompt.items()}
        for name, by_prompt in data["ratios"].items()
    }
    for name in ratios:
        metric(name)
    for claim in data.get("claims") or ():
        absent = [name for name in ("name", "says", "metric", "arm") if name not in claim]
        if absent:
            raise ValueError(f"quoted claim {dict(claim)!r} lacks {absent[0]!r}")
    return Quoted(
        str(data["source"]),
        str(data["arm"]),
        str(data["baseline"]),
        ratios,
        data.get("setup") or {},
        tuple(data.get("claims") or ()),
        data.get("guide") or {},
    )


def _check(design: DesignFile, where: str) -> None:
    if not 0 < design.alpha < 1:
        raise UserError(f"{where}: claims.alpha is {design.alpha}, allowed is a share in (0, 1)")
    for arm in {design.baseline, *(arm for pair in design.contrasts for arm in pair)}:
        if arm not in design.arms:
            known = ", ".join(design.arms)
            hint = nearest(arm, design.arms)
            raise UserError(f"{where}: {arm!r} is no arm of the design, which has {known}{hint}")
    names = [cell.cell for cell in design.cells]
    if len(set(names)) != len(names):
        raise UserError(f"{where}: a cell is planned twice")
