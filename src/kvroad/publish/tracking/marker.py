"""The file that says that a study was logged to a store, so that it is logged once."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from kvroad.study.fields import Study

__all__ = ["drop_stale_marker", "tracking_uri"]


def tracking_uri(study: Study) -> str:
    """Return where runs are logged: the environment wins over the study."""
    return os.environ.get("MLFLOW_TRACKING_URI") or study.tracking.uri


def drop_stale_marker(tables: Path, uri: str) -> Path:
    """Return the path of the marker that says that a study was logged to a store.

    A marker that speaks of a database that is gone or was made anew is removed.

    Raises
    ------
    UserError
        When the URI cannot be one of a store.
    """
    # Measuring jobs use this module too, and need nothing of a store.
    from kvroad.publish.tracking import is_logged

    name = hashlib.sha256(uri.encode()).hexdigest()[:8]
    marker = tables / f"mlflow-{name}.json"
    if marker.exists() and not is_logged(marker, uri):
        marker.unlink()
    return marker
