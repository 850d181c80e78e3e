"""What a client of serving engines sees of its requests: waits for tokens, and their rate."""

from __future__ import annotations

from dataclasses import replace

from kvroad.analysis.tables.metrics.declaration import IN_FLIGHT, ONE_AT_A_TIME, Metric, in_ms

TTFT = Metric(
    name="ttft_p50_one_at_a_time",
    label="time to first token, one request at a time",
    unit="ms",
    phase=ONE_AT_A_TIME,
    pull="ttft_p50_one_at_a_time",
    served_formula="median over requests, as the load generator sees them",
    refusals="requests that failed",
    of_phase=lambda phase: in_ms(phase.ttft_p50_s),
    margin_key="ttft_ms",
    order=2,
    is_main=True,
    needs_transfer=False,
)
EXTRA_TTFT = replace(
    TTFT,
    name="extra_ttft_ms",
    label="extra time to first token",
    served_formula="time to first token less that of one engine that serves alone, block by block",
    of_phase=None,
    extra_of=TTFT.name,
    statistic="difference of medians",
    is_part=True,
)
REQUESTS_PER_S_IN_FLIGHT = Metric(
    name="requests_per_s_in_flight",
    label="requests per second, several in flight",
    unit="requests/s",
    phase=IN_FLIGHT,
    pull="ttft_p50_in_flight",
    served_formula="requests without an error / time from the first sent to the last answered",
    refusals=TTFT.refusals,
    of_phase=lambda phase: phase.requests_per_s,
    statistic="rate",
    margin_key="requests_per_s",
    order=2,
    is_higher_better=True,
    is_main=True,
    needs_transfer=False,
)
ITL = replace(
    TTFT,
    name="itl_p50_one_at_a_time",
    label="time between tokens, one request at a time",
    pull="itl_p50_one_at_a_time",
    served_formula="median over requests of each one's mean",
    of_phase=lambda phase: in_ms(phase.itl_p50_s),
    margin_key="itl_ms",
    is_main=False,
)
TTFT_IN_FLIGHT, ITL_IN_FLIGHT = (
    replace(
        metric,
        name=metric.name.replace("one_at_a_time", "in_flight"),
        label=metric.label.replace("one request at a time", "several requests in flight"),
        phase=IN_FLIGHT,
        pull=metric.pull.replace("one_at_a_time", "in_flight"),
        is_main=False,
    )
    for metric in (TTFT, ITL)
)
