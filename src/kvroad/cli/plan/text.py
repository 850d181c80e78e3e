"""An outlook as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvroad.analysis.tables import metric
from kvroad.analysis.words import tokens_text
from kvroad.cli.plan.outlook import ArmOutlook, MatrixRow, Pools, StudyOutlook
from kvroad.cli.plan.power import Power, PowerRow
from kvroad.cli.plan.schedule import LaunchRow
from kvroad.cli.table import table_lines

__all__ = ["outlook_lines"]


def outlook_lines(outlook: StudyOutlook) -> Iterator[str]:
    """Yield the text of ``kvroad plan``."""
    hosts = [f"{host.name} ({host.connection})" for host in outlook.hosts]
    yield (
        f"{outlook.study}: {outlook.engine} on host{'s' if len(hosts) > 1 else ''} "
        f"{', '.join(hosts)}, {outlook.model}, baseline {outlook.baseline}, every arm launched "
        f"{outlook.launches} times, {outlook.cells} cells"
    )
    yield ""
    yield from _matrix_lines(outlook.matrix)
    if outlook.published:
        archive = outlook.published.archive
        yield (
            f"{archive} holds {outlook.published.cells} of these cells as published; "
            f"tar -xJf {archive} takes them in"
        )
    yield ""
    yield from _order_lines(outlook.to_run)
    yield ""
    yield _time_line(outlook)
    if outlook.to_run:
        yield from _cost_lines(outlook)
    yield _memory_line(outlook.memory)
    yield ""
    yield "expected of each arm:"
    for arm in outlook.arms:
        yield from _arm_lines(arm)
    yield ""
    yield from _power_lines(outlook.power, outlook.launches)


def _matrix_lines(rows: Sequence[MatrixRow]) -> Iterator[str]:
    states = ("proven", "refused", "failed", "missing")
    yield from table_lines(
        ["arm", "prompt", *states],
        [
            [row.arm, tokens_text(row.prompt_tokens), *(str(getattr(row, s)) for s in states)]
            for row in rows
        ],
    )
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row.reason:
            text = row.reason.split(" (as in ", 1)[0]
            reasons.setdefault(f"{row.arm}: {text}", []).append(tokens_text(row.prompt_tokens))
    for text, lengths in reasons.items():
        yield f"not proven at {', '.join(lengths)}: {text}"


def _order_lines(rows: Sequence[LaunchRow]) -> Iterator[str]:
    if not rows:
        yield "to run: nothing, every cell is settled"
        return
    yield f"to run: {len(rows)} launches, in this order (block: prompt lengths: arms)"
    blocks: dict[str, list[tuple[str, list[str]]]] = {}
    is_several = len({row.host for row in rows}) > 1
    for row in rows:
        lengths = " ".join(map(str, row.prompt_tokens))
        name = f"{row.block} on {row.host}" if is_several else str(row.block)
        groups = blocks.setdefault(name, [])
        if not groups or groups[-1][0] != lengths:
            groups.append((lengths, []))
        groups[-1][1].append(row.arm)
    for block, groups in blocks.items():
        text = " | ".join(f"{lengths}: {' '.join(arms)}" for lengths, arms in groups)
        yield f"  {block}: {text}"


def _time_line(outlook: StudyOutlook) -> str:
    time = outlook.time
    if not outlook.to_run:
        return "time: none"
    if time.seconds is None:
        return "time: unknown, no launch of this study has been seen here"
    unlike = f"; {time.n_unlike} are unlike any seen and counted as the longest"
    return (
        f"time: about {_span(time.seconds)}, from {time.n_seen} launches seen"
        f"{unlike if time.n_unlike else ''}"
    )


def _cost_lines(outlook: StudyOutlook) -> Iterator[str]:
    price, cost = outlook.price_per_hour, outlook.cost
    if isinstance(price, dict):
        missing = [host for host, each in price.items() if each is None]
        if missing:
            yield f"cost: unknown, no price_per_hour of host {', '.join(missing)}"
        elif cost is not None:
            yield f"cost: about {cost:.2f}, each host while it works (price_per_hour)"
    elif price is None:
        yield "cost: unknown, host.price_per_hour is not set"
    elif cost is None:
        yield f"cost: {price:g} for each hour that it takes (host.price_per_hour)"
    else:
        yield f"cost: about {cost:.2f} at {price:g} per hour (host.price_per_hour)"


def _span(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _memory_line(pools: Pools | None) -> str:
    if pools is None:
        return "memory: what the engine is told to take; no pools of kvroad's"
    ranks = f" over {pools.ranks_per_side} ranks" if pools.ranks_per_side > 1 else ""
    where = "both on one host" if pools.is_one_host else "one on each host"
    return (
        f"memory: {pools.bytes_per_side / 1e9:.2f} GB of {pools.kind} for the pools of "
        f"prefill{ranks}, as much for decode, {where} "
        f"(largest: {pools.arm} at {tokens_text(pools.prompt_tokens)} tokens)"
    )


def _arm_lines(arm: ArmOutlook) -> Iterator[str]:
    roads = " or ".join(arm.roads)
    yield f"  {arm.arm}: {arm.operation} of {arm.memory} over {roads}, UCX_TLS={arm.ucx_tls}"
    pulls = [
        f"{pull.descriptors:,} x {pull.descriptor_bytes:,} bytes at "
        f"{tokens_text(pull.prompt_tokens)}"
        for pull in arm.pulls
    ]
    yield f"    a rank's pull: {', '.join(pulls)} tokens"
    for witness in arm.witnesses:
        yield f"    {witness['name']}: {witness['expected']}"


def _power_lines(power: Power, launches: int) -> Iterator[str]:
    if not power.rows:
        yield (
            "power: unknown, nothing was measured yet that shows how launches vary "
            "(--spread-from STUDY takes another study's spread)"
        )
        return
    yield f"power of {launches} launches, with the spread of {power.spread_from}:"
    header = ["metric", "spread", "interval around 1x", "same within", "chance"]
    header += ["80 % takes", "chance to show 1.15x"]
    for line in table_lines(header, [_power_row(row) for row in power.rows]):
        yield f"  {line}"
    yield (
        "  spread: standard deviation of a block's log ratio; chance of same: where there is no "
        "difference at all"
    )


def _power_row(row: PowerRow) -> list[str]:
    same = ["no margin", "", ""]
    if row.margin is not None:
        needed = row.launches_for_same
        takes = f"{needed} launches" if needed else "over 64 launches"
        same = [f"{100 * row.margin:g} %", _chance(row.chance_of_same), takes]
    return [
        metric(row.metric).label,
        f"{100 * row.sd:,.0f} %" if row.sd >= 0.1 else f"{100 * row.sd:.2g} %",
        f"{row.interval_low:.3g} to {row.interval_high:.3g}",
        *same,
        _chance(row.chance_of_difference),
    ]


def _chance(share: float) -> str:
    if share < 0.01:
        return "below 1 %"
    return f"{100 * share:.0f} %" if share < 0.995 else "above 99 %"
