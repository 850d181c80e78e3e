"""The one file that travels to a host, run as there: without the packages of this environment."""

import subprocess
import sys
from pathlib import Path

from kvroad.hosts.agent_file import build_agent


def test_the_counters_are_found_in_the_agent_s_one_file(tmp_path: Path):
    agent = build_agent(tmp_path / "agent.pyz")
    code = "from kvroad.evidence.counter import counter_kinds; print(*counter_kinds())"
    command = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        f"import sys; sys.path[:0] = [sys.argv[1]]; {code}",
    ]
    done = subprocess.run([*command, agent], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["interface", "nic", "nvlink"]
