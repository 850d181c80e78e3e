"""``kvroad plan``: what a study would run, and what it could show."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from kvroad.cli.plan.outlook import next_plans, outlook_of
from kvroad.cli.plan.processes import command_lines, commands_of
from kvroad.cli.plan.text import outlook_lines
from kvroad.cli.status import DONE, RESULTS, NotUnderstood, study_of
from kvroad.errors import nearest
from kvroad.study.design import make_design

__all__ = ["run"]


def run(arguments: argparse.Namespace) -> int:
    """Print what would run; nothing on a host is touched."""
    study = study_of(arguments.overrides)
    if arguments.launch and not arguments.show_commands:
        raise NotUnderstood("--launch says whose commands: it needs --show-commands")
    design = make_design(study)
    try:
        plans = next_plans(study, design, RESULTS, arguments.launch)
    except KeyError as error:
        hint = nearest(arguments.launch, [launch.id for launch in design.launches])
        raise NotUnderstood(
            f"no launch {arguments.launch!r}{hint} (see kvroad plan --json)"
        ) from error
    outlook = outlook_of(study, design, plans, arguments.spread_from)
    commands = [commands_of(*plan) for plan in plans] if arguments.show_commands else []
    if arguments.json:
        shown = {"commands": [asdict(launch) for launch in commands]} if commands else {}
        print(json.dumps(asdict(outlook) | shown, indent=1, ensure_ascii=False))
        return DONE
    for line in command_lines(commands) if commands else outlook_lines(outlook):
        print(line)
    return DONE
