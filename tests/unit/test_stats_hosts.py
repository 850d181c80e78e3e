"""Hosts as a blocking factor, against scipy and least squares."""

import numpy as np
import pytest
from scipy import stats as scipy_stats
from synthetic import frames

from kvroad.analysis.stats import contrasts_frame
from kvroad.analysis.stats.hosts import is_host_dependent, within_hosts
from kvroad.analysis.verdict.notes import order_note

SHM = [10.0, 30.0, 11.0, 33.0, 10.5, 31.0, 10.2, 32.0]


def on_hosts(arms, hosts="abababab", **columns):
    cells, design = frames(arms)
    cells["host"] = cells["block"].map(dict(enumerate(hosts)))
    return cells.assign(**columns), design


def pull(contrasts):
    rows = contrasts[contrasts["metric"] == "pull_ms"]
    assert len(rows) == 1
    return rows.iloc[0]


def test_a_slow_host_does_not_widen_the_interval_of_pairs() -> None:
    rng = np.random.default_rng(1)
    tcp = [v * 2 * f for v, f in zip(SHM, rng.normal(1, 0.01, 8), strict=True)]
    cells, design = on_hosts({"shm": {4096: SHM}, "tcp": {4096: tcp}})
    row = pull(contrasts_frame(cells, design))
    theirs = scipy_stats.ttest_rel(np.log(tcp), np.log(SHM))
    assert row["p_value"] == pytest.approx(theirs.pvalue)
    assert row["hosts"] == "a 4, b 4"
    assert not row["is_host_dependent"]
    assert row["ratio_high"] / row["ratio_low"] < 1.05


def test_a_ratio_that_differs_between_hosts_is_said() -> None:
    noise = np.random.default_rng(2).normal(1, 0.01, 8)
    tcp = [v * f * n for v, f, n in zip(SHM, [2, 3] * 4, noise, strict=True)]
    cells, design = on_hosts({"shm": {4096: SHM}, "tcp": {4096: tcp}})
    row = pull(contrasts_frame(cells, design))
    assert row["is_host_dependent"]
    assert "the ratio is not the same on every host: a 2" in row["note"]


def test_the_test_of_one_prompt_length_is_scipys_one_way_layout() -> None:
    rng = np.random.default_rng(3)
    hosts = list("aabbbcc")
    at = {h: np.array([host == h for host in hosts]) for h in "abc"}
    for _ in range(50):
        y = rng.normal(size=7) + at["c"] * 1.5
        p = scipy_stats.f_oneway(*(y[at[h]] for h in "abc")).pvalue
        assert is_host_dependent({1: (y, hosts)}, 0.05) == (p < 0.05)
    assert not is_host_dependent({1: (y, ["a"] * 7)}, 0.05)


def test_launches_that_are_no_pairs_are_compared_within_hosts_by_least_squares() -> None:
    rng = np.random.default_rng(4)
    a_hosts, b_hosts = list("aaabb"), list("abbb")
    hosts = np.array([*a_hosts, *b_hosts])
    a = rng.normal(size=5) + (hosts[:5] == "b") * 9 + 1
    b = rng.normal(size=4) + (hosts[5:] == "b") * 9
    got = within_hosts(a, b, (a_hosts, b_hosts), 0.05)
    x = np.column_stack([np.r_[np.ones(5), np.zeros(4)], hosts == "a", hosts == "b"]).astype(float)
    beta, squares, *_ = np.linalg.lstsq(x, np.r_[a, b], rcond=None)
    error = np.sqrt(squares[0] / 6 * np.linalg.inv(x.T @ x)[0, 0])
    assert (got.mean, got.df) == (pytest.approx(beta[0]), 6)
    assert got.high - got.mean == pytest.approx(scipy_stats.t.ppf(0.975, 6) * error)


def test_arms_are_never_compared_between_two_hosts() -> None:
    cells, design = on_hosts({"shm": {4096: SHM}, "tcp": {4096: [2 * v for v in SHM]}})
    # Each arm was measured on one host only, in one run.
    cells = cells[(cells["host"] == "a") == (cells["arm"] == "shm")]
    row = pull(contrasts_frame(cells, design))
    assert np.isnan(row["ratio"])
    assert "arms are compared within a host: a, b" in row["note"]


def test_a_lost_host_leaves_the_pairs_of_the_others() -> None:
    cells, design = on_hosts({"shm": {4096: SHM}, "tcp": {4096: [2.1 * v for v in SHM]}})
    cells.loc[(cells["host"] == "b") & (cells["block"] > 2), "outcome"] = "failed"
    row = pull(contrasts_frame(cells, design))
    assert (row["n_pairs"], row["hosts"]) == (5, "a 4, b 1")
    assert row["is_interleaved"]


def test_a_level_of_each_host_is_no_drift() -> None:
    # Host b is three times slower, and all of its launches came last.
    noise = np.random.default_rng(5).normal(1, 0.01, (2, 8))
    base = np.array([10.0] * 4 + [30.0] * 4)
    arms = {"shm": {4096: list(base * noise[0])}, "tcp": {4096: list(base * 1.02 * noise[1])}}
    cells, design = on_hosts(arms, hosts="aaaabbbb")
    assert not pull(contrasts_frame(cells, design))["is_drifting"]
    assert pull(contrasts_frame(cells.drop(columns="host"), design))["is_drifting"]


def test_the_planned_order_is_that_of_each_host() -> None:
    cells, design = on_hosts({"shm": {4096: SHM}, "tcp": {4096: SHM}}, boot_id="b", attempt=1)
    place = {cell.cell: order for order, cell in enumerate(design.cells)}
    # Host b is slower than host a, so that its cells come later than planned among all.
    late = cells["cell"].map(place) + (cells["host"] == "b") * 5.0
    assert order_note(cells.assign(executed_order=late), design) == (
        "All 16 cells that ran did so in the planned order, in 1 uninterrupted run on 1 boot of "
        "2 hosts."
    )
    swapped = cells.assign(executed_order=late).sort_values("executed_order")
    swapped["executed_order"] = [1.0, 0.0, *range(2, 16)]
    assert order_note(swapped, design).startswith("14 of 16 cells ran in their planned place")
