"""MLflow tracking: one run per cell, rebuilt from files and tables; the one door for mlflow.

Importing this package does not import mlflow (seconds of CPU): the first call that talks
to a store does.
"""

from __future__ import annotations

from kvroad.publish.tracking.log import LogSummary, is_logged, log_study
from kvroad.publish.tracking.names import legal_name, original_name
from kvroad.publish.tracking.uri import Target, resolve_target

__all__ = [
    "LogSummary",
    "Target",
    "is_logged",
    "legal_name",
    "log_study",
    "original_name",
    "resolve_target",
]
