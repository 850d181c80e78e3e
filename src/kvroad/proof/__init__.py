"""From a raw folder to proven or refused."""

from kvroad.proof.judge import judge_cell

__all__ = ["judge_cell"]
