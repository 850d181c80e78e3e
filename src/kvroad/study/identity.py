"""What a cell's name is a hash of."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from kvroad.study.arms import Arm
from kvroad.study.fields import Host, HostSide, Study
from kvroad.study.setting import identity_of
from kvroad.study.sides import SIDES, is_split, side_host

__all__ = ["MEASUREMENT_VERSION", "common_identity", "identity_hash"]

# Raised by hand when measuring itself changes, so that older cells are measured anew.
MEASUREMENT_VERSION = 1


def common_identity(study: Study, arm: Arm) -> dict[str, Any]:
    """Return the identity of an arm's cells; each sets its own prompt tokens and block."""
    identity: dict[str, Any] = {
        "measurement_version": MEASUREMENT_VERSION,
        "arm": {"transport": arm.transport_name, "variant": arm.variant_name},
        "transport": identity_of(arm.transport),
        "environment": arm.environment,
        "engine": identity_of(arm.engine),
        "workload": identity_of(arm.workload),
        "model": identity_of(study.model),
        "host": _host_identity(study.host),
        "prompt_tokens": 0,
        "block": 0,
        "seed": study.seed,
        "session": study.session,
    }
    if arm.engine.serving is not None:
        identity["serving"] = identity_of(arm.engine.serving)
    return identity


def _host_identity(host: Host) -> dict[str, Any]:
    identity = identity_of(host)
    if is_split(host):
        identity |= {side: identity_of(side_host(host, side), HostSide) for side in SIDES}
    return identity


def identity_hash(identity: dict[str, Any]) -> str:
    """Return the first 12 hex digits of the SHA-256 of an identity as canonical JSON."""
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
