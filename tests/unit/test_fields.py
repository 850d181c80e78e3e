"""A field of the study is declared once: type, default, what is allowed, identity, help."""

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Annotated

import pytest

from kvroad.errors import UserError
from kvroad.study import fields as declared
from kvroad.study import serving
from kvroad.study.allowed import Count, Env, OneOf, Text
from kvroad.study.setting import (
    Identity,
    cell,
    cell_if_changed,
    free,
    identity_of,
    section,
    settings_of,
)
from kvroad.study.typed import typed

SECTIONS = [
    value
    for module in (declared, serving)
    for value in vars(module).values()
    if is_dataclass(value) and value.__module__ == module.__name__
]
BACKENDS = {"ucx": 1, "libfabric": 2}


@section
class Toy:
    """A section as somebody would add one."""

    name: Text = cell("its name")
    backend: Annotated[Text, OneOf(BACKENDS)] = cell_if_changed("", default="ucx")
    sizes: list[Count] = cell_if_changed("", default=None)
    label: Text = free("of figures", default="")
    env: Env = cell("of every process", default_factory=dict)


@section
class Holder:
    """A section with others in it."""

    toys: dict[Text, Toy] = cell("by name", default_factory=dict)


@pytest.mark.parametrize("owner", SECTIONS, ids=lambda owner: owner.__name__)
def test_every_field_says_what_it_is_and_whether_it_is_in_the_identity(owner: type) -> None:
    settings = settings_of(owner)
    assert list(settings) == [field.name for field in fields(owner)]
    for name, setting in settings.items():
        assert isinstance(setting.identity, Identity), name
        assert setting.help.strip(), name
        assert "\n" not in setting.help, name


def test_a_section_of_the_study_that_were_not_declared_would_be_seen() -> None:
    assert {"Study", "Host", "HostSide", "Engine", "ServingOptions", "HostServing"} <= {
        owner.__name__ for owner in SECTIONS
    }

    @dataclass(frozen=True)
    class Silent:
        name: str = ""

    with pytest.raises(KeyError, match="setting"):
        settings_of(Silent)


def test_a_field_added_later_is_in_the_identity_only_where_it_differs_from_its_default() -> None:
    toy = Toy("a")
    assert identity_of(toy) == {"name": "a", "env": {}}
    assert identity_of(replace(toy, backend="libfabric")) == {
        "name": "a",
        "backend": "libfabric",
        "env": {},
    }
    assert identity_of(replace(toy, label="x")) == identity_of(toy)
    assert identity_of(replace(toy, name="b")) != identity_of(toy)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "name has no value"),
        ({"name": "???"}, "name has no value"),
        ({"nme": "a"}, "unknown key of toy: 'nme'; did you mean 'name'? (allowed: backend, env, l"),
        ({"name": "a", "backend": "libfabrik"}, "toy.backend: 'libfabrik' is not allowed; did you"),
        ({"name": "a", "sizes": 3}, "toy.sizes: 3 is not a list, such as toy.sizes=[3]"),
        ({"name": "a", "sizes": [1, 0]}, "toy.sizes: 0 is too small; allowed is 1 or more"),
        ({"name": "a", "sizes": [True]}, "toy.sizes: true is not a whole number"),
        ({"name": "a", "sizes": [1.0]}, "toy.sizes: 1.0 is not a whole number"),
        ({"name": "a", "env": {"A-B": "1"}}, "toy.env: 'A-B' is not the name of an environment"),
        ({"name": "a", "env": {"A": None}}, "toy.env.A: null is not text"),
        ({"name": 1.5}, "toy.name: 1.5 is not text; put the value in quotes"),
        ("a", "toy: 'a' is not a mapping"),
    ],
)
def test_what_is_wrong_is_one_line_with_the_key_the_value_and_what_is_allowed(
    data: object, message: str
) -> None:
    with pytest.raises(UserError) as caught:
        typed(Toy, data, "toy")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_choices_of_a_registry_are_asked_for_at_each_check(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="'toy' is not allowed"):
        typed(Toy, {"name": "a", "backend": "toy"})
    monkeypatch.setitem(BACKENDS, "toy", 3)
    assert typed(Toy, {"name": "a", "backend": "toy"}).backend == "toy"


def test_a_secret_is_named_and_not_shown() -> None:
    with pytest.raises(UserError, match=r"^toy\.env\.HF_TOKEN looks like a secret") as caught:
        typed(Toy, {"name": "a", "env": {"HF_TOKEN": "hush"}}, "toy")
    assert "hush" not in str(caught.value)


def test_a_value_made_in_code_is_checked_as_one_from_a_file() -> None:
    with pytest.raises(UserError, match=r"^toys\.x\.backend: 'none' is not allowed"):
        typed(Holder, Holder({"x": Toy("a", backend="none")}))
    assert typed(Toy, {"name": 3, "sizes": ["2"]}) == Toy("3", sizes=[2])
