"""Measure what kvroad costs and write the pages about it.

python -m benchmarks.performance                    # all of it, about half an hour on two cores
python -m benchmarks.performance --only parsers     # one part; the others stay as they are
python -m benchmarks.performance --only none        # the pages again, from what was measured
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.performance.analysis import (
    measure_analysis,
    measure_nothing_to_do,
    measure_tracking,
)
from benchmarks.performance.checkout import ROOT, checkout
from benchmarks.performance.pages import performance_page
from benchmarks.performance.parsers import measure_parsers
from benchmarks.performance.replay import measure_replay
from benchmarks.performance.scale import scale_page
from benchmarks.performance.shares import measure_imports, measure_shares
from benchmarks.performance.synthetic import measure_templates
from kvroad.files import write_text

DATA = ROOT / "benchmarks" / "performance" / "measured.json"
PARTS: dict[str, Callable[[Path], Any]] = {
    "shares": lambda folder: measure_shares(folder, "loopback"),
    # Needs engines: python tools/cpu_serving.py sets them up.
    "serving_shares": lambda folder: measure_shares(folder, "cpu_serving", "launches=2"),
    "imports": measure_imports,
    "parsers": measure_parsers,
    "replay": measure_replay,
    "analysis": measure_analysis,
    "nothing_to_do": measure_nothing_to_do,
    "tracking": measure_tracking,
}
# These work on synthetic cells, copies of measured ones.
_NEED_CELLS = ("analysis", "nothing_to_do", "tracking")


def measure(names: list[str], place: Path | None) -> None:
    """Measure the named parts; each is written as soon as it is there."""
    with checkout(place) as folder:
        for name in names:
            if name in _NEED_CELLS and not (folder / "templates").exists():
                measure_templates(folder)
                (folder / "templates").touch()
            told = PARTS[name](folder)
            data = json.loads(DATA.read_text()) if DATA.exists() else {}
            now = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
            data[name] = {"measured_at": now, "machine": _machine(), **told}
            DATA.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")
            print(f"{name}: done", flush=True)


def _machine() -> dict[str, Any]:
    model = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": model[0] if model else platform.processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(memory / 1e9),
        "python": platform.python_version(),
    }


def main() -> None:
    """Measure what is asked for, then write both pages."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=[*PARTS, "none"], default=list(PARTS))
    parser.add_argument("--in", dest="place", type=Path, help="a checkout to work in, kept")
    arguments = parser.parse_args()
    measure([name for name in arguments.only if name != "none"], arguments.place)
    data = json.loads(DATA.read_text())
    write_text(ROOT / "docs" / "performance.md", performance_page(data))
    write_text(ROOT / "docs" / "scale.md", scale_page(data))


if __name__ == "__main__":
    main()
