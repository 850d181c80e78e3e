"""What a cell's name is a hash of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import NotRequired, TypedDict

from kvroad.study.arms import Arm
from kvroad.study.fields import Host, HostSide, Study
from kvroad.study.setting import identity_of
from kvroad.study.sides import SIDES, is_split, side_host

__all__ = ["MEASUREMENT_VERSION", "CellIdentity", "common_identity", "identity_hash"]

# Raised by hand when measuring itself changes, so that older cells are measured anew.
MEASUREMENT_VERSION = 1


class CellIdentity(TypedDict):
    """What a cell was measured with, as JSON has it; a cell's file keeps it."""

    measurement_version: int
    arm: dict[str, str]
    transport: dict[str, object]
    environment: dict[str, str]
    engine: dict[str, object]
    workload: dict[str, object]
    model: dict[str, object]
    host: dict[str, object]
    prompt_tokens: int
    block: int
    seed: int
    session: str
    serving: NotRequired[dict[str, object]]


def common_identity(study: Study, arm: Arm) -> CellIdentity:
    """Return the identity of an arm's cells; each sets its own prompt tokens and block."""
    identity: CellIdentity = {
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


def _host_identity(host: Host) -> dict[str, object]:
    identity = identity_of(host)
    if is_split(host):
        identity |= {side: identity_of(side_host(host, side), HostSide) for side in SIDES}
    return identity


def identity_hash(identity: Mapping[str, object]) -> str:
    """Return the first 12 hex digits of the SHA-256 of an identity as canonical JSON."""
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
