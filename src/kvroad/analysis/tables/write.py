"""Tables as files."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from kvroad.files import write_atomic

__all__ = ["write_table"]


def write_table(frame: pd.DataFrame, stem: Path) -> tuple[Path, Path]:
    """Write ``<stem>.parquet`` and ``<stem>.csv``; equal frames give equal CSV bytes."""
    parquet = stem.with_name(f"{stem.name}.parquet")
    csv = stem.with_name(f"{stem.name}.csv")
    write_atomic(parquet, lambda path: frame.to_parquet(path, index=False))
    write_atomic(csv, lambda path: frame.to_csv(path, index=False, lineterminator="\n"))
    return parquet, csv
