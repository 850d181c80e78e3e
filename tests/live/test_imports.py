"""What a fresh interpreter imports: quick commands load nothing heavy."""

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
HEAVY = (
    *("pandas", "scipy", "hydra", "omegaconf", "mlflow"),
    *("fabric", "matplotlib", "seaborn", "snakemake"),
)
COMMAND_LINE = """
from kvroad.cli import main
try: main(['plan', '--help'])
except SystemExit: pass
from kvroad.cli.completion import suggestions
suggestions('study=')
"""


@pytest.mark.parametrize(
    ("code", "allowed"),
    [
        pytest.param(COMMAND_LINE, set(), id="help and completion"),
        pytest.param("import kvroad.study.compose", {"hydra", "omegaconf"}, id="composing"),
        pytest.param("import kvroad.publish.tracking", set(), id="tracking"),
    ],
)
def test_nothing_heavy_is_imported(code: str, allowed: set[str]) -> None:
    code = f"{code}\nimport sys\nprint([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    assert set(eval(done.stdout.splitlines()[-1])) <= allowed
