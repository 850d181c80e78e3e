"""``kvroad plan``."""

from kvroad.cli.plan.command import run

__all__ = ["run"]
