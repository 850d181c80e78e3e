"""Run tests again and again and count: a test that fails once in ten runs is a flake.

    uv run python tools/stress_tests.py --runs 10 tests/unit
    uv run python tools/stress_tests.py --runs 10 --load tests/unit

With ``--load`` each core is kept busy, or ``--load N`` processes keep busy what there is. The
other words are pytest's.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

# Ends with whoever started it, even when that is killed: its end of the pipe closes.
BUSY = """
import os, threading
threading.Thread(target=lambda: (os.read(0, 1), os._exit(0))).start()
while True:
    pass
"""
_BAD = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


@contextlib.contextmanager
def busy_processes(n_processes: int) -> Iterator[None]:
    """Keep so many processes busy."""
    started = []
    try:
        for _ in range(n_processes):
            words = [sys.executable, "-c", BUSY]
            started.append(subprocess.Popen(words, stdin=subprocess.PIPE))
        yield
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()


def run_once(words: Sequence[str], log: Path) -> tuple[bool, list[str], str]:
    """Run pytest, its output in ``log``; return whether it passed, what failed, its last line."""
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--color=no", *words]
    with log.open("w") as out:
        done = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, check=False)
    text = log.read_text(errors="replace")
    last = next((line for line in reversed(text.splitlines()) if line.strip()), "no output")
    return done.returncode == 0, _BAD.findall(text), last.strip("= ")


def stress(n_runs: int, words: Sequence[str]) -> int:
    """Run pytest ``n_runs`` times and say what came of it; return the exit status."""
    logs = Path(tempfile.mkdtemp(prefix="stress_tests-"))
    n_passed, n_done, failures = 0, 0, Counter[str]()
    with contextlib.suppress(KeyboardInterrupt):
        for number in range(1, n_runs + 1):
            started, log = time.monotonic(), logs / f"{number}.log"
            passed, failed, last = run_once(words, log)
            took_s = time.monotonic() - started
            n_done, n_passed = number, n_passed + passed
            failures.update(failed)
            word = "passed" if passed else f"FAILED ({log})"
            print(f"run {number} of {n_runs}: {word}, {took_s:.0f} s: {last}", flush=True)
    for name, count in failures.most_common():
        print(f"failed in {count} of {n_done}: {name}")
    print(f"{n_passed} of {n_runs} passed")
    return 0 if n_passed == n_runs else 1


def main(words: Sequence[str]) -> int:
    """Read the command line and run."""
    words = list(words)
    if "--load" in words:
        # argparse would take the first word of pytest's for the number.
        after = words.index("--load") + 1
        if not (after < len(words) and words[after].isdecimal()):
            words.insert(after, str(len(os.sched_getaffinity(0))))
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s [--runs N] [--load [N]] [PYTEST_ARGS...]",
        allow_abbrev=False,
    )
    parser.add_argument("--runs", type=int, default=10, help="how often (10)")
    parser.add_argument("--load", type=int, default=0, help="busy processes beside the tests")
    arguments, for_pytest = parser.parse_known_args(words)
    if arguments.runs < 1 or arguments.load < 0:
        parser.error("--runs is 1 or more, --load 0 or more")
    with busy_processes(arguments.load):
        return stress(arguments.runs, for_pytest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
