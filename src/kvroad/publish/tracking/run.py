"""One run as it should stand in MLflow."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TypeAlias

from kvroad.evidence.redact import redact_text
from kvroad.publish.tracking.names import PARAM_LIMIT, TAG_LIMIT, clip, legal_name, long_names

__all__ = [
    "KEY_TAGS",
    "NOTE_TAG",
    "PARENT_TAG",
    "RunRecord",
    "Scalar",
    "metrics",
    "params",
    "tags",
]

Scalar: TypeAlias = str | float | None
"""A value of a table or of the configuration; None where it is absent."""

PARENT_TAG = "mlflow.parentRunId"
NOTE_TAG = "mlflow.note.content"
KEY_TAGS = {"cell": "cell", "session": "session", "study": "study_slug"}
"""Kind of run to the tag that holds its key within an experiment."""

_FORMAT = 2
"""Raise it when what is logged changes: every run is then written anew."""


@dataclass(frozen=True)
class RunRecord:
    """One run as it should stand in MLflow.

    Parameters
    ----------
    kind, key
        What finds it again: ``cell`` and its id, ``session`` and its name, ``study`` and
        its slug.
    status
        ``FINISHED`` or ``FAILED``.
    volatile
        Tags that may differ from call to call without a change of content.
    """

    kind: str
    key: str
    name: str
    status: str
    start_ms: int
    end_ms: int
    params: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    artifacts: Mapping[str, bytes] = field(default_factory=dict)
    volatile: Mapping[str, str] = field(default_factory=dict)

    @property
    def content(self) -> str:
        """Digest of all that is logged; a stored run with the same one is left alone."""
        files = {name: hashlib.sha256(data).hexdigest() for name, data in self.artifacts.items()}
        parts = [_FORMAT, self.name, self.status, self.params, self.metrics, self.tags, files]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]

    def child_of(self, run_id: str) -> RunRecord:
        """Return the same run below a parent."""
        return replace(self, tags={**self.tags, PARENT_TAG: run_id})


def params(values: Mapping[str, Scalar]) -> dict[str, str]:
    """Return the present values as MLflow params."""
    return {
        legal_name(name): _shown(str(value), PARAM_LIMIT)
        for name, value in values.items()
        if _is_present(value)
    }


def metrics(values: Mapping[str, Scalar]) -> dict[str, float]:
    """Return the finite numbers as MLflow metrics; what is absent is left out, never zero."""
    return {
        legal_name(name): float(value)
        for name, value in values.items()
        if value is not None and _is_present(value) and math.isfinite(float(value))
    }


def tags(values: Mapping[str, Scalar], metric_names: Iterable[str] = ()) -> dict[str, str]:
    """Return the present values as MLflow tags, without secrets and cut with an ellipsis.

    Names in ``metric_names`` that had to be cut are kept whole in tags ``long_name/<digest>``.
    """
    cut = {f"long_name/{digest}": name for digest, name in long_names(metric_names).items()}
    return {
        legal_name(name): _shown(str(value), TAG_LIMIT)
        for name, value in {**values, **cut}.items()
        if _is_present(value)
    }


# Most values are the same in every cell of a study.
@lru_cache(maxsize=4096)
def _shown(text: str, limit: int) -> str:
    return clip(redact_text(text), limit)


def _is_present(value: Scalar) -> bool:
    # NaN alone differs from itself.
    return value is not None and value != "" and value == value
