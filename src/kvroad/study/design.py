"""From a study to its launches and cells: arms, order, identity.

The order follows a Williams square (E. J. Williams, "Experimental designs balanced for
the estimation of residual effects of treatments", 1949): every arm comes before and
after every other equally often. Several hosts get the blocks in turn, and each a stretch
of the square's rows.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass

from kvroad.study.arms import Arm, arm_label, arm_labels, arms_of, lengths_of
from kvroad.study.fields import Study, TransportOverride
from kvroad.study.identity import CellIdentity, common_identity, identity_hash
from kvroad.study.serving import AGGREGATED
from kvroad.study.sides import hosts_of, on_host

__all__ = ["Cell", "Design", "Launch", "contrast_pairs", "design_facts", "make_design"]

# What these settings change is how the bytes of a pull are cut, which a cost model accounts for.
_CUT_BY = ("workload.block_tokens", "engine.regions")


@dataclass(frozen=True)
class Cell:
    """One arm, prompt length and block; ``identity`` is what its name is a hash of."""

    id: str
    arm: str
    prompt_tokens: int
    block: int
    identity: CellIdentity

    @property
    def host(self) -> str:
        """Name of the host that the block is on."""
        return str(self.identity["host"]["name"])


@dataclass(frozen=True)
class Launch:
    """One arm on fresh engines in one block, with its cells in the order they run."""

    id: str
    arm: Arm
    block: int
    cells: list[Cell]

    @property
    def host(self) -> str:
        """Name of the host that the block is on."""
        return self.cells[0].host


@dataclass(frozen=True)
class Design:
    """Arms and launches of a study; launches are in the order they are to run."""

    arms: dict[str, Arm]
    launches: list[Launch]

    @property
    def cells(self) -> list[Cell]:
        """All cells in the planned order."""
        return [cell for launch in self.launches for cell in launch.cells]

    def launch(self, launch_id: str) -> Launch:
        """Return a launch by its id; raises KeyError for an unknown one."""
        return {launch.id: launch for launch in self.launches}[launch_id]


def make_design(study: Study) -> Design:
    """Return all launches of a study in their balanced order."""
    hosts = [on_host(study, host.name) for host in hosts_of(study)]
    arms = [{arm.label: arm for arm in arms_of(host)} for host in hosts]
    # Once for all cells of an arm: to look at every field of the study takes its time.
    common = [
        {label: common_identity(host, arm) for label, arm in of_host.items()}
        for host, of_host in zip(hosts, arms, strict=True)
    ]
    order = _balanced_rows(list(arms[0]))
    launches: list[Launch] = []
    for block in range(study.launches):
        turn, place = divmod(block, len(hosts))
        first_row = place * (study.launches // len(hosts)) + turn
        launches += _block(study, (arms[place], common[place]), order, block, first_row)
    return Design(arms[0], launches)


def _block(
    study: Study,
    of_host: tuple[dict[str, Arm], dict[str, CellIdentity]],
    order: list[list[str]],
    block: int,
    first_row: int,
) -> list[Launch]:
    """Return the launches of a block in their order, given its host's arms and identities."""
    arms, common = of_host
    lengths = list(study.prompt_tokens)
    random.Random(f"{study.seed}/{block}").shuffle(lengths)
    if study.engine.cells_per_launch == "all":
        row = order[first_row % len(order)]
        return [
            _shared_launch(
                arms[label],
                common[label],
                block,
                [n for n in lengths if n in lengths_of(study, label)],
            )
            for label in row
        ]
    launches = []
    for length in lengths:
        # The row depends on the length, so that each length sees every row in turn.
        row = order[(first_row + study.prompt_tokens.index(length)) % len(order)]
        measured = [label for label in row if length in lengths_of(study, label)]
        cells = [_cell(arms[label], common[label], block, length) for label in measured]
        launches += [Launch(cell.id, arms[cell.arm], block, [cell]) for cell in cells]
    return launches


def design_facts(study: Study, design: Design, slug: str) -> dict[str, object]:
    """Return what the analysis needs to know of a design, as plain values.

    Nothing in it depends on what has been measured.
    """
    launch_of = {cell.id: launch for launch in design.launches for cell in launch.cells}
    return {
        "study": slug,
        "study_name": study.name,
        "session": study.session,
        "baseline": study.baseline,
        "contrasts": contrast_pairs(study),
        "cells": [
            {
                "cell": cell.id,
                "launch": launch_of[cell.id].id,
                "arm": cell.arm,
                "transport": launch_of[cell.id].arm.transport_name,
                "variant": launch_of[cell.id].arm.variant_name,
                "prompt_tokens": cell.prompt_tokens,
                "block": cell.block,
                "host": cell.host,
            }
            for cell in design.cells
        ],
        "arms": {label: _arm_facts(study, arm) for label, arm in design.arms.items()},
        "engine": study.engine.name,
        "model": study.model.name,
        "claims": asdict(study.claims),
        "overrides": list(study.overrides),
    }


def _arm_facts(study: Study, arm: Arm) -> dict[str, object]:
    """Return what an arm declares to be its own, and which arms it shares a cost model with."""
    variant = study.variants[arm.variant_name]
    overrides = [
        host.transports.get(arm.transport_name, TransportOverride()) for host in hosts_of(study)
    ]
    nominal = {override.nominal_gb_per_s for override in overrides}
    environment = {*arm.transport.env, *variant.env, *(k for o in overrides for k in o.env)}
    settings = {
        **{f"engine.{key}": value for key, value in variant.engine.items()},
        **{f"workload.{key}": value for key, value in variant.workload.items()},
        **{f"serving.{key}": value for key, value in variant.serving.items()},
        **{f"env.{key}": value for key, value in variant.env.items()},
    }
    others = [
        f"{key.partition('.')[2]}={value}"
        for key, value in sorted(settings.items())
        if key not in _CUT_BY and key != "engine.operation"
    ]
    return {
        "declares": sorted({"env.UCX_TLS", *settings, *(f"env.{key}" for key in environment)}),
        "series": ", ".join([f"{arm.transport_name} {arm.engine.operation}", *others]),
        "operation": arm.engine.operation,
        "nominal_gb_per_s": nominal.pop() if len(nominal) == 1 else None,
    }


def contrast_pairs(study: Study) -> list[list[str]]:
    """Return the pairs (arm, reference) to compare: by default every arm with the baseline.

    An engine that serves alone is what others are measured against, so that it is the
    reference of every arm of its variant.
    """
    if study.contrasts is not None:
        return study.contrasts
    variants = {arm_label(t, v): v for v in study.variants for t in study.transports}
    alone = {arm_label(AGGREGATED, variant) for variant in study.variants}
    pulling = [arm for arm in arm_labels(study) if arm not in alone]
    pairs = [[arm, study.baseline] for arm in pulling if arm != study.baseline]
    with_alone = [[arm, arm_label(AGGREGATED, variants[arm])] for arm in pulling]
    return pairs + [p for p in with_alone if p[1] in arm_labels(study) and p not in pairs]


def _shared_launch(arm: Arm, common: CellIdentity, block: int, lengths: list[int]) -> Launch:
    cells = [_cell(arm, common, block, length) for length in lengths]
    shared = {k: v for k, v in cells[0].identity.items() if k != "prompt_tokens"}
    return Launch(f"{arm.label}-b{block}-{identity_hash(shared)}", arm, block, cells)


def _cell(arm: Arm, common: CellIdentity, block: int, prompt_tokens: int) -> Cell:
    identity: CellIdentity = {**common, "prompt_tokens": prompt_tokens, "block": block}
    return Cell(
        id=f"{arm.label}-p{prompt_tokens}-b{block}-{identity_hash(identity)}",
        arm=arm.label,
        prompt_tokens=prompt_tokens,
        block=block,
        identity=identity,
    )


def _balanced_rows(labels: list[str]) -> list[list[str]]:
    """Return the rows of a Williams square, then the same rows backwards (two: AB BA BA AB)."""
    n = len(labels)
    # 0, 1, n - 1, 2, n - 2, …
    first = [(place + 1) // 2 if place % 2 else -(place // 2) % n for place in range(n)]
    rows = [[(place + shift) % n for place in first] for shift in range(n)]
    if n % 2 and n > 1:
        rows += [row[::-1] for row in rows]
    rows += rows[::-1]
    return [[labels[place] for place in row] for row in rows]
