"""``kvroad stop``."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing

from kvroad.cli.status import DONE, FAILED, study_of
from kvroad.engines import owner_of
from kvroad.hosts import AgentHost, HostLost, open_host
from kvroad.study.sides import hosts_of

__all__ = ["run"]


def run(arguments: argparse.Namespace) -> int:
    """End what a study left running on its hosts; one that cannot be reached keeps no other."""
    study = study_of(arguments.overrides)
    owner, status = owner_of(study), DONE
    for spec in hosts_of(study):
        try:
            with closing(open_host(spec)) as running:
                for host in running.hosts():
                    _stop_on(host, owner)
        except HostLost as error:
            print(f"error: {error}", file=sys.stderr)
            status = FAILED
    return status


def _stop_on(host: AgentHost, owner: str) -> None:
    ended = 0
    for event in host.stop(owner):
        if event["event"] == "busy":
            holder = event["holder"]
            print(f"{host.label}: {holder.get('owner')} is at work there; left alone")
        elif event["event"] in ("stopping", "reaped"):
            ended += 1
    what = "1 launch" if ended == 1 else f"{ended or 'no'} launches"
    print(f"{host.label}: {what} of this study ended")
