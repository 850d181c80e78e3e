"""What a host has of what serving engines need: their Python, the load generator, the model."""

from __future__ import annotations

from kvroad.errors import UserError
from kvroad.study.design import Design
from kvroad.study.fields import Study
from kvroad.study.kinds import OK, REFUSED, ExaminedHost, HostFinding

__all__ = ["examine_serving"]

_CHECK = "serving engines"
# What helps where the program or the folder of a setting is not there.
_FIXES = {
    "host.serving.python": (
        "set it to the interpreter that has vLLM; docs/serving.md tells how to get one"
    ),
    "host.serving.aiperf": (
        "set it to the program of aiperf's own environment, or take engine.serving.tool=vllm_bench"
    ),
    "host.serving.model": (
        "set it to the folder of weights and tokenizer, or leave it null to take the model's "
        "repository"
    ),
}
# Its answer maps settings to what was found; or ``missing`` is the first setting whose program
# or model is not there, and ``error`` says what was looked for.
_PROBE = """
import json, os, shutil
from pathlib import Path

def programs(words):
    home = os.path.expanduser("~")
    found = {"missing": None, "error": None}
    for name, word in words.items():
        word = word.replace("{home}", home)
        found[name] = word
        if name == "host.serving.model":
            folder = os.path.expanduser(word)
            is_folder = word.startswith(("/", "~", "./"))
            if is_folder and not (Path(folder) / "config.json").is_file():
                return {"missing": name, "error": f"no config.json in {folder}"}
        elif word == "{python}":
            found[name] = "the agent's"
        else:
            found[name] = shutil.which(word)
            if found[name] is None:
                return {"missing": name, "error": f"no program {word}"}
    return found
"""


def examine_serving(study: Study, design: Design, host: ExaminedHost) -> list[HostFinding]:
    """Return whether the programs and the model that the settings name are on a host."""
    try:
        found = host.ask(_script(study))
    except UserError as error:
        return [HostFinding(_CHECK, REFUSED, str(error))]
    if found["missing"] is not None:
        name = str(found["missing"])
        return [HostFinding(_CHECK, REFUSED, f"{name}: {found['error']}", _FIXES[name])]
    paths = ", ".join(str(path) for key, path in found.items() if key.startswith("host."))
    return [HostFinding(_CHECK, OK, paths)]


def _script(study: Study) -> str:
    site, options = study.host.serving, study.engine.serving
    words = {"host.serving.python": site.python or "{python}"}
    if options is None or options.tool == "aiperf":
        words["host.serving.aiperf"] = site.aiperf
    words["host.serving.model"] = site.model or study.model.repository or ""
    return f"{_PROBE}\nprint(json.dumps(programs({words!r})))\n"
