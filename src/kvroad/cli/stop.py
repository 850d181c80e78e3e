"""``kvroad stop``."""

from __future__ import annotations

import argparse
from contextlib import closing

from kvroad.cli.status import DONE, study_of
from kvroad.hosts import open_host
from kvroad.measure import owner_of

__all__ = ["run"]


def run(arguments: argparse.Namespace) -> int:
    """End what a study left running on its hosts."""
    study = study_of(arguments.overrides)
    owner = owner_of(study)
    with closing(open_host(study.host)) as host:
        for one in host.hosts():
            ended = 0
            for event in one.stop(owner):
                if event["event"] == "busy":
                    holder = event["holder"]
                    print(f"{one.label}: {holder.get('owner')} is at work there; left alone")
                elif event["event"] in ("stopping", "reaped"):
                    ended += 1
            what = "1 launch" if ended == 1 else f"{ended or 'no'} launches"
            print(f"{one.label}: {what} of this study ended")
    return DONE
