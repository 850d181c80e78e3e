"""What plans of serving engines have in common: claim, driver, phases, options of vLLM."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from kvroad.engines import claim_of, layout_of, loads_of
from kvroad.engines.driver import DriverConfig, LoadRequest
from kvroad.errors import UserError
from kvroad.plan import (
    Claim,
    Command,
    File,
    Label,
    LogLine,
    Phase,
    Plan,
    PlannedCell,
    Process,
    Serving,
)
from kvroad.study.design import Cell, Launch
from kvroad.study.fields import Engine, Model, Study
from kvroad.study.kv_layout import KvLayout
from kvroad.study.serving import AGGREGATED, ServingOptions
from kvroad.study.sides import is_split

__all__ = [
    "DECODE",
    "FRONTEND",
    "PREFILL",
    "Site",
    "check_served",
    "engine_environment",
    "served_layout",
    "serving_plan",
    "vllm_options",
]

_DRIVER = Path(__file__).parent / "driver"
_PLUGIN = Path(__file__).parent / "plugin" / "kvroad_cache_check.py"
# What makes a folder on Python's path a distribution whose entry points are found.
_DISTRIBUTION = {
    "METADATA": "Metadata-Version: 2.1\nName: kvroad-cache-check\nVersion: 1\n",
    "entry_points.txt": (
        "[vllm.general_plugins]\nkvroad_cache_check = kvroad_cache_check:register\n"
    ),
}
DECODE, PREFILL, FRONTEND = "decode-0", "prefill-0", "frontend"
_DRIVER_NAME = "driver"
# Requests that only warm up need no long answer.
_WARMUP_OUTPUT_TOKENS = 16
# What a phase takes beyond its load: settling counters, writing files.
_PHASE_SLACK_S = 60.0
_SEED_LIMIT = 2**31


class Site:
    """One launch with what the planners ask of it.

    Raises
    ------
    UserError
        When prefill and decode are on two hosts, or there are too few GPUs.
    """

    def __init__(self, study: Study, launch: Launch) -> None:
        self.study, self.launch, self.arm = study, launch, launch.arm
        self.engine, self.host = launch.arm.engine, study.host
        options = self.engine.serving
        if options is None:
            raise UserError(f"engine.serving has no value: engine {self.engine.name} needs it")
        if is_split(study.host):
            raise UserError(
                f"engine {self.engine.name}: prefill and decode on two hosts are measured with "
                "engine=nixl only"
            )
        self.options: ServingOptions = options
        self.is_alone = launch.arm.transport_name == AGGREGATED
        self.python = study.host.serving.python or "{python}"
        self.model = study.host.serving.model or study.model.repository or ""
        if not self.model:
            raise UserError(
                f"host.serving.model has no value, and model {study.model.name} no repository"
            )
        self.name = study.model.name

    @property
    def engines(self) -> list[str]:
        """The engines of the launch, in the order of their start."""
        return [DECODE] if self.is_alone else [PREFILL, DECODE]

    def gpus(self, engine: str) -> str | None:
        """Return ``CUDA_VISIBLE_DEVICES``: the engine's own GPUs first, then its peer's.

        UCX looks for NVLink between GPUs that a process can see.
        """
        if self.engine.memory != "VRAM":
            return None
        n, gpus = self.engine.tensor_parallel_size, self.host.gpus
        needed = n if self.is_alone else 2 * n
        if len(gpus) < needed:
            raise UserError(
                f"engine.tensor_parallel_size={n} needs {needed} GPUs for prefill and decode; "
                f"host.gpus of {self.host.name} lists {len(gpus)}"
            )
        first = gpus[n : 2 * n] if engine == DECODE and not self.is_alone else gpus[:n]
        peers = [] if self.is_alone else [gpu for gpu in gpus[: 2 * n] if gpu not in first]
        return ",".join(map(str, [*first, *peers]))


def vllm_options(site: Site, engine: str) -> list[str]:
    """Return the words of vLLM's command line that follow the model."""
    options, study = site.options, site.study
    words = ["--served-model-name", site.name, "--dtype", study.model.dtype]
    words += ["--tensor-parallel-size", str(site.engine.tensor_parallel_size)]
    words += ["--block-size", str(site.arm.workload.block_tokens)]
    for name in (
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
        "gpu_memory_utilization",
        "kv_cache_memory_bytes",
        "attention_backend",
    ):
        value = getattr(options, name)
        if value is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    if options.enforce_eager:
        words.append("--enforce-eager")
    words.append("--no-enable-prefix-caching")
    if not site.is_alone:
        words += ["--kv-transfer-config", json.dumps(_transfer_config(site, engine))]
    return [*words, *options.extra_args]


def _transfer_config(site: Site, engine: str) -> dict[str, object]:
    options = site.options
    extra: dict[str, object] = {"num_threads": site.engine.num_threads, **options.extra_config}
    if options.cross_layer_blocks:
        extra["enable_cross_layers_blocks"] = "True"
    role = "kv_producer" if engine == PREFILL else "kv_consumer"
    config: dict[str, object] = {"kv_connector": options.kv_connector, "kv_role": role}
    if options.kv_buffer_device is not None:
        config["kv_buffer_device"] = options.kv_buffer_device
    return {**config, "kv_connector_extra_config": extra}


def engine_environment(site: Site, engine: str, planned: dict[str, str]) -> dict[str, str]:
    """Return an engine's variables: the planner's, vLLM's, then those of the arm."""
    options = site.options
    environment = {
        "VLLM_HOST_IP": "{bind}",
        "VLLM_LOG_STATS_INTERVAL": str(options.log_interval_s),
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        **planned,
    }
    if not site.is_alone:
        environment["VLLM_NIXL_SIDE_CHANNEL_HOST"] = "{bind}"
        environment["VLLM_NIXL_SIDE_CHANNEL_PORT"] = "{port:" + engine + "-side}"
        if options.check_cache:
            environment["PYTHONPATH"] = "{folder}/plugin{also:PYTHONPATH}"
            environment["KVROAD_CACHE_CHECK"] = "{folder}/cache_check"
    if options.cross_layer_blocks:
        # The V2 model runner ignores the option without a word.
        environment["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    if options.kv_cache_layout is not None:
        environment["VLLM_KV_CACHE_LAYOUT"] = options.kv_cache_layout
    gpus = site.gpus(engine)
    if gpus is not None:
        environment["CUDA_VISIBLE_DEVICES"] = gpus
    return {**environment, **site.arm.environment}


def serving_plan(
    site: Site,
    cells: list[Cell],
    owner: str,
    servers: list[Process],
    ports: list[str],
    metrics: Callable[[str], str],
) -> Plan:
    """Return the plan: the servers in their order, then the driver that loads them.

    Parameters
    ----------
    servers
        Front end and engines.
    ports
        Names of the ports that the servers listen on.
    metrics
        Engine to the address of its Prometheus metrics.
    """
    layouts = {c.id: layout_of(site.study, site.launch, c.prompt_tokens) for c in cells}
    sides = [] if site.is_alone else [f"{engine}-side" for engine in site.engines]
    return Plan(
        launch=site.launch.id,
        arm=site.arm.label,
        owner=owner,
        claim=_claim(site, list(layouts.values())),
        processes=[*servers, _driver(site, metrics)],
        cells=[_planned_cell(site, cell, layouts[cell.id]) for cell in cells],
        files=[
            *(File(f"driver/{p.name}", p.read_text()) for p in sorted(_DRIVER.glob("*.py"))),
            File("driver.json", json.dumps(_config(site), indent=1)),
            *_plugin(site),
        ],
        ports=dict.fromkeys([*ports, *sides], 0),
        bind_address=site.host.bind_address,
        stop_timeout_s=site.engine.stop_timeout_s,
        facts_from=_DRIVER_NAME,
    )


def _checks_cache(site: Site) -> bool:
    return site.options.check_cache and not site.is_alone


def _plugin(site: Site) -> list[File]:
    if not _checks_cache(site):
        return []
    folder = "plugin/kvroad_cache_check-1.dist-info"
    return [
        File(f"plugin/{_PLUGIN.name}", _PLUGIN.read_text()),
        *(File(f"{folder}/{name}", text) for name, text in _DISTRIBUTION.items()),
    ]


def _driver(site: Site, metrics: Callable[[str], str]) -> Process:
    words = ["{python}", "-m", "driver", "load", "--config", "driver.json", "--events", "{events}"]
    words += ["--frontend", "http://{bind}:{port:frontend}"]
    for engine in site.engines:
        words += ["--metrics", f"{engine.removesuffix('-0')}={metrics(engine)}"]
    words += ["--aiperf", site.host.serving.aiperf, "--engine-python", site.python]
    words += ["--tokenizer", site.model]
    return Process(
        name=_DRIVER_NAME,
        argv=words,
        ready_event="ready",
        ready_timeout_s=site.engine.start_timeout_s,
        stop_line="quit",
    )


def _config(site: Site) -> DriverConfig:
    options = site.options
    return {
        "model": site.name,
        "tool": options.tool,
        "seed": site.study.seed * 1000 + site.launch.block,
        "probe_tokens": options.probe_tokens,
        "engine_ranks": site.engine.tensor_parallel_size,
        "log_interval_s": options.log_interval_s,
        "checks_cache": _checks_cache(site),
        # The agent waits longer: what is told here names the step.
        "start_timeout_s": site.engine.start_timeout_s / 3,
    }


def _claim(site: Site, layouts: list[KvLayout]) -> Claim:
    return replace(
        claim_of(site.study, site.launch, layouts[0]),
        # Decode pulls, whatever the replay of the same study would do; it prints no use counts.
        operation="read",
        ranks=1,
        use_counts=False,
        serving=Serving(
            engine_ranks=site.engine.tensor_parallel_size,
            largest_descriptor_bytes=max(layout.n_bytes for layout in layouts),
            output_tokens=site.options.output_tokens,
            failed_share_at_most=site.options.failed_share_at_most,
            log_lines=_log_lines(site),
            labels=[
                _cache_label("workload.block_tokens", "block_size", site.arm.workload.block_tokens),
                _cache_label("prefix caching", "enable_prefix_caching", False),
            ],
            is_aggregated=site.is_alone,
            num_threads=site.engine.num_threads,
        ),
    )


def _cache_label(option: str, label: str, value: object) -> Label:
    return Label(option, "vllm:cache_config_info", label, str(value))


def _log_lines(site: Site) -> list[LogLine]:
    """Return what the engines print of options that they might have passed over."""
    options, lines = site.options, []
    for engine in site.engines:
        tp = f"tensor_parallel_size={site.engine.tensor_parallel_size},"
        lines.append(LogLine("engine.tensor_parallel_size", engine, tp))
        if options.vllm_version is not None:
            text = f"LLM engine (v{options.vllm_version}"
            lines.append(LogLine("engine.serving.vllm_version", engine, text))
        if site.is_alone:
            continue
        text = "Allocating a cross layer KV cache"
        crossed = options.cross_layer_blocks
        lines.append(LogLine("engine.serving.cross_layer_blocks", engine, text, crossed))
        if options.kv_cache_layout is not None:
            text = f"Using {options.kv_cache_layout} KV cache layout"
            lines.append(LogLine("engine.serving.kv_cache_layout", engine, text))
    return lines


def _planned_cell(site: Site, cell: Cell, layout: KvLayout) -> PlannedCell:
    engine, phases = site.engine, []
    for load in loads_of(site.study, site.launch, cell):
        # The driver sends the requests of the warm-up itself, whatever the tool.
        is_own = load.phase == "warmup"
        output_tokens = site.options.output_tokens
        request: LoadRequest = {
            "cell": cell.id,
            "phase": load.phase,
            "is_own": is_own,
            "prompt_tokens": cell.prompt_tokens,
            "output_tokens": min(output_tokens, _WARMUP_OUTPUT_TOKENS) if is_own else output_tokens,
            "requests": load.pulls,
            "concurrency": load.in_flight,
            "seed": load.seed % _SEED_LIMIT,
            "timeout_s": engine.phase_timeout_s,
            "descriptors": layout.n_descriptors,
            "pull_bytes": layout.n_bytes,
        }
        phases.append(
            Phase(
                name=load.phase,
                command=Command([_DRIVER_NAME], {**request}, "phase_done"),
                timeout_s=engine.phase_timeout_s + _PHASE_SLACK_S,
                pulls=0 if site.is_alone else load.pulls * engine.tensor_parallel_size,
            )
        )
    return PlannedCell(cell.id, cell.prompt_tokens, phases)


def check_served(engine: Engine) -> None:
    """Raise UserError for an option of the replay that would change nothing here."""
    if engine.regions is not None:
        raise UserError(
            f"engine.regions: engine {engine.name} lays out its own cache; leave it null"
        )


def served_layout(layout: KvLayout, engine: Engine, model: Model) -> KvLayout:
    """Return the layout as vLLM is asked to keep it: K beside V, all layers in one block.

    Raises
    ------
    UserError
        Where vLLM would not join the blocks of all layers.
    """
    options = engine.serving
    if options is None:
        return layout
    if options.cross_layer_blocks and len(layout.groups) > 1:
        raise UserError(
            f"engine.serving.cross_layer_blocks: model {model.name} has {len(layout.groups)} "
            "groups of layers, and vLLM joins the blocks of one group only"
        )
    if options.cross_layer_blocks:
        joined_bytes = layout.descriptor_bytes * layout.n_tensors * layout.halves
        return KvLayout(1, 1, joined_bytes, layout.groups)
    if options.packed_kv and layout.halves == 2:
        return KvLayout(layout.n_tensors, 1, 2 * layout.descriptor_bytes, layout.groups)
    return layout
