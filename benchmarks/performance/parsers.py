"""Parsers on long logs: rate per core and the most memory held, by size."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.performance.checkout import ROOT, cost_of, load

__all__ = ["KINDS", "MB", "SIZES_MB", "measure_parsers"]

MB = 1_000_000
SIZES_MB = {"engine": (50, 2000), "UCX tables": (5, 50)}
KINDS = ("records", "serving", "versions", "doctor")
_SAMPLES = ROOT / "tests" / "data" / "samples"
_OF_WORK = re.compile(rb'"(?:POST|GET) /|\[loggers\.py:')
_OF_TRANSFERS = b"KV Transfer metrics: "
# What each synthetic log is made of, over and over: real logs of one run each.
_MADE_OF = {
    "engine": _SAMPLES / "serving" / "vllm023_tcp_decode.log",
    "UCX tables": _SAMPLES / "ucx" / "ucx123_nixl151_tcp_protoinfo_used.log",
}


def measure_parsers(folder: Path) -> dict[str, Any]:
    """Read logs of each kind and size in processes of their own."""
    rows = []
    for kind, sample in _MADE_OF.items():
        for size in SIZES_MB[kind]:
            raw = folder / "raw"
            raw.mkdir(exist_ok=True)
            _write(raw / "decode-0.log", sample, size * MB)
            for what in KINDS:
                words = [sys.executable, "-m", "benchmarks.performance.parsers", what, "raw"]
                cost = cost_of(words, folder)
                told = json.loads(cost.output.strip().splitlines()[-1])
                rows.append({"kind": kind, "mb": size, "what": what, "load": load(), **told})
            (raw / "decode-0.log").unlink()
    return {"rows": rows, "samples": {k: str(p.relative_to(ROOT)) for k, p in _MADE_OF.items()}}


def _write(path: Path, sample: Path, n_bytes: int) -> None:
    """Write a sample, then over and over what repeats in it while the program is at work.

    Of an engine's log: the lines of requests and of the engine's own figures, and in every MB
    a line of its transfers, which vLLM writes every ten seconds. What UCX says there it says
    once, at the start.
    """
    text = sample.read_bytes()
    lines = text.splitlines(keepends=True)
    rarely = b""
    if "serving" in sample.parts:
        rarely = next(line for line in lines if _OF_TRANSFERS in line)
        lines = [line for line in lines if _OF_WORK.search(line)]
    often = b"".join(lines)
    block = rarely + often * max(1, MB // len(often))
    with open(path, "wb") as out:
        out.write(text)
        left = n_bytes - len(text)
        while left > 0:
            left -= out.write(block[:left])


def _peak_bytes() -> int:
    """Return the most memory that this process has held (proc(5), VmHWM)."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def _reader(what: str, log: Path) -> Callable[[], object]:
    """Return what reads the log, with all that it imports there already."""
    if what == "records":
        from kvroad.evidence.ucx import parse_file

        return lambda: parse_file(log.open("rb"), log.name)
    if what == "serving":
        from kvroad.proof.raw import _found, _kv_lines

        return lambda: (_kv_lines(log), _found(log, ["no line has this", "nor this"]))
    if what == "doctor":
        from kvroad.proof.engine_logs import read_log

        return lambda: read_log(log)
    from kvroad.agent.manifest import write_manifest
    from kvroad.analysis.tables.cell_folder import _checked_files, _ucx_versions

    write_manifest(log.parent)
    return lambda: _ucx_versions(_checked_files(log.parent))


def _main(what: str, raw: Path) -> None:
    import resource
    import time

    log = raw / "decode-0.log"
    read = _reader(what, log)
    # The peak of a process begins as that of the one that started it.
    Path("/proc/self/clear_refs").write_text("5")
    held = _peak_bytes()
    before = resource.getrusage(resource.RUSAGE_SELF)
    start = time.monotonic()
    read()
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    told = {
        "cpu_s": cpu_s,
        "wall_s": time.monotonic() - start,
        "mb_per_s": log.stat().st_size / MB / cpu_s,
        "rss_before_bytes": held,
        "rss_bytes": _peak_bytes(),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    _main(sys.argv[1], Path(sys.argv[2]))
