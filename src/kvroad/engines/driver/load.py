"""One phase of load by a tool of its own: aiperf, or the benchmark that vLLM brings."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from .client import Failed

__all__ = ["Load", "LoadFacts", "Tool", "hash_of", "run_tool"]

_LAST_LINES = 4
# What an engine needs to stay off the network keeps aiperf from a tokenizer folder.
_NOT_FOR_AIPERF = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


@dataclass(frozen=True)
class Load:
    """The load of one phase: so many requests, so many at a time, of fixed lengths in tokens."""

    prompt_tokens: int
    output_tokens: int
    requests: int
    concurrency: int
    seed: int
    timeout_s: float


class LoadFacts(TypedDict, total=False):
    """What is known of a load once it is over; ``prompts_sha256`` is None where it cannot be."""

    tool: str
    argv: list[str]
    returncode: int
    wall_s: float
    prompts_sha256: str | None
    n_prompts: int
    error: str


@dataclass(frozen=True)
class Tool:
    """The load generator on this host."""

    name: str
    aiperf: str
    engine_python: str
    model: str
    tokenizer: str
    url: str

    def argv(self, load: Load, folder: Path) -> list[str]:
        """Return the command of a phase; its files end up in ``folder``."""
        return self._aiperf(load, folder) if self.name == "aiperf" else self._vllm(load, folder)

    def _aiperf(self, load: Load, folder: Path) -> list[str]:
        n_out = str(load.output_tokens)
        return [
            *(self.aiperf, "profile", "--model", self.model, "--tokenizer", self.tokenizer),
            *("--url", self.url, "--endpoint-type", "completions", "--streaming"),
            *("--synthetic-input-tokens-mean", str(load.prompt_tokens)),
            *("--synthetic-input-tokens-stddev", "0"),
            *("--output-tokens-mean", n_out, "--output-tokens-stddev", "0"),
            *("--extra-inputs", "ignore_eos:true", "--extra-inputs", f"min_tokens:{n_out}"),
            *("--use-server-token-count", "--concurrency", str(load.concurrency)),
            *("--request-count", str(load.requests)),
            # As many prompts as requests: none is sent twice.
            *("--num-dataset-entries", str(load.requests)),
            *("--random-seed", str(load.seed), "--ui", "none", "--no-gpu-telemetry"),
            *("--no-server-metrics", "--export-level", "records"),
            *("--output-artifact-dir", str(folder)),
        ]

    def _vllm(self, load: Load, folder: Path) -> list[str]:
        return [
            *(self.engine_python, "-m", "vllm.entrypoints.cli.main", "bench", "serve"),
            *("--backend", "openai", "--base-url", self.url, "--endpoint", "/v1/completions"),
            *("--model", self.tokenizer, "--served-model-name", self.model),
            *("--dataset-name", "random", "--random-input-len", str(load.prompt_tokens)),
            *("--random-output-len", str(load.output_tokens), "--random-range-ratio", "0"),
            *("--num-prompts", str(load.requests), "--max-concurrency", str(load.concurrency)),
            *("--num-warmups", "0", "--ignore-eos", "--seed", str(load.seed)),
            *("--save-result", "--save-detailed", "--result-dir", str(folder)),
            *("--result-filename", "bench.json"),
        ]

    def environment(self) -> dict[str, str]:
        """Return the environment of the tool."""
        if self.name != "aiperf":
            return dict(os.environ)
        return {k: v for k, v in os.environ.items() if k not in _NOT_FOR_AIPERF}


def run_tool(tool: Tool, load: Load, folder: Path) -> LoadFacts:
    """Run one phase and return what is known of it; an exit status of 0 proves nothing yet.

    Raises
    ------
    Failed
        When the tool does not start or does not end in time.
    """
    argv = tool.argv(load, folder)
    started = time.monotonic()
    log_path = folder / "tool.log.txt"
    with open(log_path, "wb") as log:
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=tool.environment(),
                start_new_session=True,
            )
        except OSError as error:
            raise Failed(f"{argv[0]}: {error.strerror or error}") from error
    try:
        status = process.wait(load.timeout_s)
    except subprocess.TimeoutExpired as error:
        _end(process)
        raise Failed(f"{tool.name} did not end within {load.timeout_s:g} s") from error
    facts: LoadFacts = {
        "tool": tool.name,
        "argv": argv,
        "returncode": status,
        "wall_s": time.monotonic() - started,
        **_prompts(folder),
    }
    if status != 0:
        facts["error"] = f"{tool.name} ended with status {status}: {_last(log_path)}"
    return facts


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the tool with all that it started: it leads a session of its own."""
    for number, wait_s in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        try:
            os.killpg(process.pid, number)
            process.wait(wait_s)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def _prompts(folder: Path) -> LoadFacts:
    """Return hash and number of the prompts that aiperf wrote down; take the long file away."""
    path = folder / "inputs.json"
    try:
        data = json.loads(path.read_text())["data"]
        # Session names are drawn anew each time; the prompts are what must be equal.
        prompts = [payload["prompt"] for session in data for payload in session["payloads"]]
    except (OSError, ValueError, KeyError, TypeError):
        return {"prompts_sha256": None}
    path.unlink()
    return {"prompts_sha256": hash_of(prompts), "n_prompts": len(prompts)}


def hash_of(prompts: list[Any]) -> str:
    """Return the SHA-256 of all prompts of a phase, in their order."""
    return hashlib.sha256(json.dumps(prompts).encode()).hexdigest()


def _last(path: Path) -> str:
    lines = [line.strip() for line in path.read_text(errors="replace").splitlines()]
    return " | ".join([line for line in lines if line][-_LAST_LINES:])
