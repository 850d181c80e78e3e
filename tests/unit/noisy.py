"""Launch values with a known ratio and spread, and the contrasts of them."""

import numpy as np
import pandas as pd

from kvroad.analysis.stats import contrasts_frame
from kvroad.analysis.tables import DesignFile

PROMPTS = (4096, 8192, 16384)


def noisy(
    ratio: float = 2.0, sd: float = 0.01, n: int = 4, seed: int = 1, ms: float = 301.7
) -> dict[str, dict[int, list[float]]]:
    """Return launch values in ms of shm and tcp at three prompt lengths."""
    rng = np.random.default_rng(seed)
    return {
        arm: {p: list(ms * (p / 4096) * factor * np.exp(rng.normal(0, sd, n))) for p in PROMPTS}
        for arm, factor in (("shm", 1.0), ("tcp", ratio))
    }


def rows_of(cells: pd.DataFrame, design: DesignFile, metric: str = "pull_ms") -> pd.DataFrame:
    contrasts = contrasts_frame(cells, design)
    return contrasts[contrasts["metric"] == metric].set_index("prompt_tokens")
