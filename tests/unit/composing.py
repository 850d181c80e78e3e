"""Composing in tests: the committed configuration, and the line that refuses."""

from pathlib import Path

import pytest

from kvroad.errors import UserError
from kvroad.study.compose import compose

CONF = Path(__file__).parents[2] / "conf"


def refusal(*overrides, conf=CONF):
    with pytest.raises(UserError) as caught:
        compose(overrides, conf)
    message = str(caught.value)
    assert "\n" not in message
    return message
