"""The hosts of a study, and the two halves of one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvroad.study.fields import Host, HostSide, Study

__all__ = ["SIDES", "hosts_of", "is_split", "on_host", "side_host", "single_hosts"]


def hosts_of(study: Study) -> list[Host]:
    """Return the hosts of a study, between which its blocks are dealt out in turn."""
    return study.hosts or [study.host]


def on_host(study: Study, name: str) -> Study:
    """Return the study as it is on one of its hosts; raises KeyError for an unknown name."""
    host = {host.name: host for host in hosts_of(study)}[name]
    return replace(study, host=host, hosts=[])


SIDES = ("prefill", "decode")


def is_split(host: Host) -> bool:
    """Return whether prefill and decode run on two hosts."""
    return any(_differences(host, side) for side in SIDES)


def side_host(host: Host, side: str) -> Host:
    """Return the host of one half: the host itself where both halves run on it."""
    if not is_split(host):
        return host
    values = {"name": f"{host.name}-{side}", **_differences(host, side)}
    return replace(host, prefill=HostSide(), decode=HostSide(), **values)


def single_hosts(host: Host) -> list[Host]:
    """Return the one host, or the two of its halves in the order of their names."""
    if not is_split(host):
        return [host]
    return sorted((side_host(host, side) for side in SIDES), key=lambda half: half.name)


def _differences(host: Host, side: str) -> dict[str, Any]:
    """Return the fields that a half sets."""
    values = vars(getattr(host, side))
    return {key: value for key, value in values.items() if value is not None}
