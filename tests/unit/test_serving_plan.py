"""Plans of serving engines: what each process is started with."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvroad.engines import plan_of
from kvroad.errors import UserError
from kvroad.plan import Plan, Process, dumps, loads
from kvroad.study.compose import compose
from kvroad.study.design import contrast_pairs, make_design
from kvroad.study.fields import Variant

CONF = Path(__file__).parents[2] / "conf"


def plans(*overrides: str) -> dict[str, Plan]:
    """Return the first plan of each arm."""
    study = compose(overrides, CONF)
    found: dict[str, Plan] = {}
    for launch in make_design(study).launches:
        found.setdefault(launch.arm.label, plan_of(study, launch, launch.cells))
    return found


def process(plan: Plan, name: str) -> Process:
    return next(p for p in plan.processes if p.name == name)


def option(found: Process, name: str) -> str:
    return found.argv[found.argv.index(name) + 1]


def transfer_config(found: Process) -> dict[str, object]:
    config: dict[str, object] = json.loads(option(found, "--kv-transfer-config"))
    return config


def test_the_published_study_starts_dynamo_with_two_tp4_engines_on_their_own_gpus() -> None:
    plan = plans("study=roce_vs_nvlink")["nvlink"]
    assert [p.name for p in plan.processes] == ["frontend", "prefill-0", "decode-0", "driver"]
    prefill, decode = process(plan, "prefill-0"), process(plan, "decode-0")
    assert option(decode, "--tensor-parallel-size") == "4"
    assert option(decode, "--model") == "google/gemma-4-31B-it"
    assert "--no-enable-prefix-caching" in decode.argv
    assert prefill.env["CUDA_VISIBLE_DEVICES"] == "0,1,2,3,4,5,6,7"
    assert decode.env["CUDA_VISIBLE_DEVICES"] == "4,5,6,7,0,1,2,3"
    assert prefill.env["UCX_TLS"] == decode.env["UCX_TLS"] == "rc_x,cuda_copy,cuda_ipc"
    assert "UCX_TLS" not in process(plan, "frontend").env
    assert transfer_config(prefill)["kv_role"] == "kv_producer"
    assert transfer_config(decode)["kv_role"] == "kv_consumer"
    ports = ("VLLM_NIXL_SIDE_CHANNEL_PORT", "DYN_SYSTEM_PORT")
    assert all(prefill.env[p] != decode.env[p] for p in ports)
    assert loads(dumps(plan)) == plan


def test_the_load_is_the_published_one_with_prompts_that_no_phase_shares() -> None:
    plan = plans("study=roce_vs_nvlink")["roce"]
    assert sorted(cell.prompt_tokens for cell in plan.cells) == [4096, 8192, 16384]
    for cell in plan.cells:
        lines = {phase.name: phase.command.line for phase in cell.phases}
        assert lines["one_at_a_time"]["concurrency"] == 1
        assert lines["in_flight"]["concurrency"] == 30
        assert lines["in_flight"]["output_tokens"] == 256
        assert len({line["seed"] for line in lines.values()}) == 3
        assert [p.pulls for p in cell.phases] == [4 * line["requests"] for line in lines.values()]


def test_every_arm_of_a_block_gets_the_same_prompts() -> None:
    found = plans("study=cpu_serving")
    seeds = {
        arm: {
            (c.prompt_tokens, p.name): p.command.line["seed"] for c in plan.cells for p in c.phases
        }
        for arm, plan in found.items()
    }
    assert seeds["shm"] == seeds["tcp"] == seeds["none"]


def test_an_engine_that_serves_alone_transfers_nothing() -> None:
    plan = plans("study=cpu_serving")["none"]
    assert [p.name for p in plan.processes] == ["frontend", "decode-0", "driver"]
    decode = process(plan, "decode-0")
    assert "--kv-transfer-config" not in decode.argv
    assert "--disaggregation-mode" not in decode.argv
    assert not [name for name in decode.env if name.startswith("UCX_")]
    assert all(phase.pulls == 0 for cell in plan.cells for phase in cell.phases)
    assert plan.claim.serving is not None
    assert plan.claim.serving.is_aggregated


def test_without_dynamo_a_proxy_joins_the_same_engines() -> None:
    plan = plans("study=cpu_serving", "engine=vllm")["tcp"]
    assert [p.name for p in plan.processes] == ["prefill-0", "decode-0", "frontend", "driver"]
    assert "serve" in process(plan, "decode-0").argv
    assert not [name for name in process(plan, "decode-0").env if name.startswith("DYN_")]


def test_cross_layer_blocks_choose_the_runner_that_heeds_them_and_must_be_seen() -> None:
    found = plans("study=h200_serving", "host.serving.model=/model")
    crossed, plain = found["nvlink+cross_layer"], found["nvlink"]
    decode = process(crossed, "decode-0")
    assert decode.env["VLLM_USE_V2_MODEL_RUNNER"] == "0"
    extra = transfer_config(decode)["kv_connector_extra_config"]
    assert extra == {"num_threads": 4, "enable_cross_layers_blocks": "True"}
    for plan, is_there in ((crossed, True), (plain, False)):
        assert plan.claim.serving is not None
        lines = [x for x in plan.claim.serving.log_lines if "cross layer" in x.text]
        assert {line.is_there for line in lines} == {is_there}
    assert crossed.claim.descriptor_bytes == 64 * plain.claim.descriptor_bytes


def test_block_size_is_the_workloads_and_held_against_what_the_engine_says() -> None:
    plan = plans("study=h200_serving", "host.serving.model=/model")["nvlink+b16"]
    assert option(process(plan, "decode-0"), "--block-size") == "16"
    assert plan.claim.serving is not None
    assert ("block_size", "16") in {(x.label, x.value) for x in plan.claim.serving.labels}


def test_decode_may_start_before_prefill_is_ready() -> None:
    asked = ("study=cpu_serving", "engine.serving.decode_after_s=3")
    for engine in ("dynamo", "vllm"):
        plan = plans(*asked, f"engine={engine}")["tcp"]
        gaps = {p.name: p.next_after_s for p in plan.processes}
        assert gaps.pop("prefill-0") == 3.0
        assert set(gaps.values()) == {None}


def test_a_plug_in_travels_with_the_plan_unless_it_is_not_wanted() -> None:
    found = plans("study=cpu_serving")
    plugin = [f.path for f in found["tcp"].files if f.path.startswith("plugin/")]
    assert "plugin/kvroad_cache_check.py" in plugin
    for name in ("prefill-0", "decode-0"):
        path = process(found["tcp"], name).env["PYTHONPATH"]
        assert path == "{folder}/plugin{also:PYTHONPATH}"
    without = [found["none"], plans("study=cpu_serving", "engine.serving.check_cache=false")["tcp"]]
    for plan in without:
        assert not [f.path for f in plan.files if f.path.startswith("plugin/")]
        assert "PYTHONPATH" not in process(plan, "decode-0").env


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["engine.serving.tool=aiprf"], "did you mean 'aiperf'?"),
        (["engine.serving.extra_args=[--block-size]"], "'--block-size' is set by the plan"),
        (["engine.serving.extra_config={num_threads: 1}"], "use engine.num_threads or"),
        (["engine.serving.vllm_version=new"], "is no version"),
        (
            ["engine.serving.decode_after_s=-1"],
            "decode_after_s: -1 is too small; allowed is 0 or more",
        ),
        (
            ["engine.serving.failed_share_at_most=2"],
            "2 is too large; allowed is below 1",
        ),
        (["engine.serving.outputtokens=2"], "did you mean 'output_tokens'?"),
        (["engine=nixl", "engine.serving=null"], "it needs engine=dynamo or engine=vllm"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        compose(["study=cpu_serving", *overrides], CONF)


def test_too_few_gpus_and_two_hosts_are_refused() -> None:
    study = compose(["study=roce_vs_nvlink"], CONF)
    launch = make_design(study).launches[0]
    few = replace(study, host=replace(study.host, gpus=[0, 1, 2, 3]))
    with pytest.raises(UserError, match="needs 8 GPUs"):
        plan_of(few, launch, launch.cells)
    split = compose(["study=roce_vs_nvlink", "host.decode.name=other"], CONF)
    launch = make_design(split).launches[0]
    with pytest.raises(UserError, match="two hosts"):
        plan_of(split, launch, launch.cells)


def test_what_serves_alone_is_the_reference_of_every_arm_of_its_variant() -> None:
    study = compose(["study=roce_vs_nvlink", "transport=[nvlink,roce,none]"], CONF)
    pairs = [["roce", "nvlink"], ["nvlink", "none"], ["roce", "none"]]
    assert contrast_pairs(study) == pairs
    alone = replace(study, baseline="none")
    assert contrast_pairs(alone) == [["nvlink", "none"], ["roce", "none"]]
    cut = replace(study, variants={**study.variants, "b16": Variant()})
    assert contrast_pairs(cut)[-2:] == [["nvlink+b16", "none+b16"], ["roce+b16", "none+b16"]]
    assert ["none", "nvlink"] not in contrast_pairs(cut)
    chosen = replace(cut, arms=["nvlink", "nvlink+b16", "none"])
    assert contrast_pairs(chosen) == [["nvlink+b16", "nvlink"], ["nvlink", "none"]]
