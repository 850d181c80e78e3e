"""The one door to Hydra: overrides and ``conf/`` become a typed, checked study."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_origin

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]

from kvroad.errors import UserError
from kvroad.study.arms import arm_label
from kvroad.study.checks import validate, validate_hosts
from kvroad.study.fields import Model, Study
from kvroad.study.name import without_password
from kvroad.study.several_hosts import chosen_hosts, merge_studies, words_for_host
from kvroad.study.snakemake_words import check_command_line, snakemake_overrides
from kvroad.study.typed import FIELD_OF_GROUP, config_keys, shown, type_at, typed, unknown

__all__ = ["check_command_line", "compose", "read_model", "read_values", "snakemake_overrides"]

# Groups of which a study takes several options; the others take one.
_LIST_GROUPS = tuple(FIELD_OF_GROUP)
# A list of hosts makes a study of each, which are merged.
_SEVERAL = (*_LIST_GROUPS, "host")
Overrides = Mapping[str, Override]
_HOW_TO_CHOOSE = "a file chooses options by '- override /GROUP: OPTION' under defaults"


def compose(overrides: Sequence[str], conf_dir: Path) -> Study:
    """Compose ``conf_dir`` with Hydra overrides, the last one of a key winning.

    Raises
    ------
    UserError
        In one line, for whatever Hydra, a field's type or a value check refuses.
    """
    conf_dir = conf_dir.resolve()
    if not (conf_dir / "config.yaml").is_file():
        raise UserError(f"configuration: {conf_dir / 'config.yaml'} does not exist")
    given = {override.key_or_group: override for override in map(_parse, overrides)}
    hosts = chosen_hosts(_value(given, "host"), _value(given, "study"), conf_dir)
    if hosts is None:
        return _compose(given, given, conf_dir)
    _check_options("host", hosts, _options(conf_dir, "host"))
    words = {key: str(override.input_line) for key, override in given.items()}
    studies = []
    for host in hosts:
        of_host = map(_parse, words_for_host(host, hosts, words))
        studies.append(_compose({o.key_or_group: o for o in of_host}, given, conf_dir))
    study = merge_studies(studies)
    validate_hosts(study)
    return study


def _value(overrides: Overrides, key: str) -> Any:
    override = overrides.get(key)
    return None if override is None or override.is_sweep_override() else override.value()


def _compose(overrides: Overrides, given: Overrides, conf_dir: Path) -> Study:
    """Return the study on one host; ``given`` are the overrides of the study as a whole."""
    for override in overrides.values():
        _check_override(override, conf_dir)
    _check_chosen(overrides, conf_dir)
    data = _hydra(overrides.values(), conf_dir)
    _check_groups(data, conf_dir)
    for key in data:
        if key not in config_keys():
            raise unknown("key", key, config_keys())
    data["baseline"] = _baseline(overrides, data)
    values = {FIELD_OF_GROUP.get(key, key): data[key] for key in data if key != "study"}
    values["overrides"] = [without_password(_text(override)) for override in given.values()]
    study = typed(Study, values)
    _check_host_overrides(overrides, study, conf_dir)
    validate(study)
    return study


def read_values(words: Sequence[str], allowed: Iterable[str]) -> dict[str, Any]:
    """Return the values of ``key=value`` words in Hydra's syntax, for keys of a command's own.

    Raises
    ------
    UserError
        For a key that is none of ``allowed``, and for a value that cannot be read.
    """
    values: dict[str, Any] = {}
    for override in map(_parse, words):
        key, line = override.key_or_group, _one_line(override.input_line)
        if key not in allowed or override.is_add() or override.is_delete():
            raise unknown("key", key, allowed)
        if override.is_sweep_override():
            value = line.split("=", 1)[1]
            raise UserError(f"{line}: several values need brackets: {key}=[{value}]")
        values[key] = override.value()
    return values


def read_model(name: str, conf_dir: Path) -> Model:
    """Return a model of ``conf_dir`` by its name.

    Raises
    ------
    UserError
        When there is none, or its file is not that of a model.
    """
    known = _options(conf_dir, "model")
    if name not in known:
        raise unknown("model", name, known)
    data = OmegaConf.to_container(OmegaConf.load(conf_dir / "model" / f"{name}.yaml"))
    return typed(Model, data, "model")


def _one_line(text: object) -> str:
    return " ".join(str(text).split())


def _parse(text: str) -> Override:
    try:
        return OverridesParser.create().parse_override(text)
    except HydraException as error:
        reason = f"{str(error).splitlines()[0]}; a value with other signs goes in quotes"
        for left, right, what in (("[", "]", "list"), ("{", "}", "mapping")):
            if text.count(left) > text.count(right):
                reason = f"the {what} is not closed; write {text}{right}"
        raise UserError(f"override {text!r} cannot be read: {reason}") from error


def _check_override(override: Override, conf_dir: Path) -> None:
    key, line = override.key_or_group, _one_line(override.input_line)
    if override.package is not None:
        raise UserError(f"override {line!r}: '@' is not supported; name the key itself")
    hint = type_at(key.split("."))
    if override.is_delete():
        return
    value = line.split("=", 1)[1]
    if not value:
        raise UserError(f"{key} has no value: write {key}=VALUE, or {key}=null to unset it")
    if override.is_sweep_override():
        is_list = key in _SEVERAL or get_origin(hint) is list
        form = f"{key}=[{value}]" if is_list else f'{key}="{value}"'
        raise UserError(
            f"{line}: several values need {'brackets' if is_list else 'quotes'}: {form}"
        )
    if (conf_dir / key).is_dir():
        _check_options(key, override.value(), _options(conf_dir, key))


def _options(conf_dir: Path, group: str) -> list[str]:
    return sorted(path.stem for path in (conf_dir / group).glob("*.yaml"))


def _check_options(group: str, value: Any, options: list[str]) -> None:
    allowed = f"(allowed: {', '.join(options)})"
    if group not in _SEVERAL and isinstance(value, list):
        raise UserError(f"{group}: one option is taken, not a list {allowed}")
    names = value if isinstance(value, list) else [value]
    if not names:
        raise UserError(f"{group} is empty: name at least one {allowed}")
    for name in names:
        if not isinstance(name, str):
            raise UserError(f"{group}: {shown(name)} is not an option {allowed}")
        if name not in options:
            raise unknown(group, name, options)
        if names.count(name) > 1:
            raise UserError(f"{group}: {name!r} is named twice; once is enough")


def _check_chosen(overrides: Overrides, conf_dir: Path) -> None:
    """Refuse to change an option of a list group that the study has not chosen."""
    keys = [key.split(".") for key, override in overrides.items() if not override.is_add()]
    below = [key for key in keys if key[0] in _LIST_GROUPS and len(key) > 1]
    if not below:
        return
    choices = [override for key, override in overrides.items() if (conf_dir / key).is_dir()]
    chosen = _hydra(choices, conf_dir)
    for group, name, *_ in below:
        if name not in chosen.get(group, {}):
            raise unknown(f"{group} of this study", name, chosen.get(group, {}))


def _as_hydra_takes_it(override: Override, conf_dir: Path) -> str:
    """Return the override so that it also sets a field that its file leaves to the default."""
    line = str(override.input_line)
    is_plain = not (override.is_add() or override.is_force_add() or override.is_delete())
    return f"++{line}" if is_plain and not (conf_dir / override.key_or_group).is_dir() else line


def _text(override: Override) -> str:
    key: str = override.get_key_element()
    return key if override.is_delete() else f"{key}={override.get_value_element_as_str()}"


def _hydra(overrides: Iterable[Override], conf_dir: Path) -> dict[str, Any]:
    words = [_as_hydra_takes_it(override, conf_dir) for override in overrides]
    try:
        with initialize_config_dir(str(conf_dir), version_base="1.3"):
            config = hydra_compose("config", overrides=words)
        data = OmegaConf.to_container(config, resolve=True)
    except MissingConfigException as error:
        if found := re.search(r"'(\w+)/([^']+)'", str(error)):
            group, name = found.groups()
            raise unknown(group, name, _options(conf_dir, group)) from error
        raise UserError(f"configuration: {_one_line(error)}") from error
    except (HydraException, OmegaConfBaseException, YAMLError, UnicodeDecodeError) as error:
        reason = _one_line(error)
        if "Cannot merge DictConfig with ListConfig" in reason:
            reason = f"{reason.split(':')[0]}: a list where keys belong; {_HOW_TO_CHOOSE}"
        raise UserError(f"configuration: {reason}") from error
    assert isinstance(data, dict)
    return {str(key): value for key, value in data.items()}


def _check_groups(data: Mapping[str, Any], conf_dir: Path) -> None:
    for group in sorted(path.name for path in conf_dir.iterdir() if path.is_dir()):
        allowed = ", ".join(_options(conf_dir, group))
        chosen = data.get(group)
        if group in _LIST_GROUPS and not chosen:
            raise UserError(f"{group} is empty: name at least one (allowed: {allowed})")
        if chosen is not None and not isinstance(chosen, dict):
            raise UserError(
                f"{group}: {shown(chosen)} is not a mapping; {_HOW_TO_CHOOSE} (allowed: {allowed})"
            )
    for group in _LIST_GROUPS:
        for name, value in data[group].items():
            if not isinstance(value, dict):
                raise UserError(
                    f"conf/{group}: the file that sets {name!r} must begin with the line "
                    f"'# @package {group}.NAME'"
                )


def _check_host_overrides(overrides: Overrides, study: Study, conf_dir: Path) -> None:
    """Refuse what a host sets of no transport, and an override that the host's value hides."""
    known = {*_options(conf_dir, "transport"), *study.transports}
    for name, of_host in study.host.transports.items():
        if name not in known:
            raise unknown("transport in host.transports:", name, known)
        hidden = {f"transport.{name}.env.{key}" for key in of_host.env}
        if of_host.ucx_tls is not None:
            hidden.add(f"transport.{name}.ucx_tls")
        for key in hidden & set(overrides):
            meant = key.replace("transport.", "host.transports.", 1)
            raise UserError(f"{key} has no effect: the host sets its own; override {meant}")


def _baseline(overrides: Overrides, data: Mapping[str, Any]) -> Any:
    """Return the baseline: as overridden, else the study's if it is an arm, else the first arm."""
    arms = [arm_label(t, v) for v in data["variant"] for t in data["transport"]]
    arms = [arm for arm in arms if arm in (data.get("arms") or arms)] or arms
    of_study = data.get("baseline")
    is_replaced = "baseline" not in overrides and {*_LIST_GROUPS, "arms"} & set(overrides)
    return arms[0] if of_study is None or (is_replaced and of_study not in arms) else of_study
