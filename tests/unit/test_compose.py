import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from composing import CONF, refusal

from kvroad.study.arms import arm_labels, ucx_tls_of, variant_settings
from kvroad.study.compose import compose
from kvroad.study.design import make_design
from kvroad.study.kv_layout import pull_layout
from kvroad.study.name import resolved, study_slug

GROUPS = sorted(path.name for path in CONF.iterdir() if path.is_dir())
OPTIONS = [(path.parent.name, path.stem) for path in sorted(CONF.glob("*/*.yaml"))]
HOSTS = ", ".join(name for group, name in OPTIONS if group == "host")
# What an option cannot know by itself.
NEEDED = {
    ("host", "ssh"): ["host.address=127.0.0.1"],
    ("engine", "dynamo"): ["engine.memory=DRAM"],
    ("engine", "vllm"): ["engine.memory=DRAM"],
    ("transport", "none"): ["engine=dynamo", "engine.memory=DRAM"],
    ("variant", "cross_layer"): ["engine=vllm", "engine.memory=DRAM", "model=llama-3.1-8b"],
}


@pytest.fixture
def conf(tmp_path):
    return Path(shutil.copytree(CONF, tmp_path / "conf"))


class TestOptions:
    @pytest.mark.parametrize(("group", "name"), OPTIONS)
    def test_every_option_composes(self, group, name):
        choice = f"{group}=[{name}]" if group in ("transport", "variant") else f"{group}={name}"
        study = compose([choice, *NEEDED.get((group, name), [])], CONF)
        assert make_design(study).launches
        if group == "study":
            assert study.name == name
        elif group in ("transport", "variant"):
            assert list(getattr(study, f"{group}s")) == [name]
        elif group in ("host", "engine", "model"):
            assert getattr(study, group).name == name

    def test_groups_are_the_documented_ones(self):
        assert " ".join(GROUPS) == "claims engine host model study transport variant workload"

    def test_loopback_is_the_default_and_pulls_one_rank_of_gemma_between_processes(self):
        study = compose([], CONF)
        assert study == replace(compose(["study=loopback"], CONF), overrides=[])
        assert (study.name, study.baseline, study.launches) == ("loopback", "shm", 4)
        assert study.prompt_tokens == [4096, 8192, 16384]
        assert (study.workload.block_tokens, study.workload.concurrency) == (64, 4)
        assert (study.engine.tensor_parallel_size, study.engine.rank_pairs) == (4, 1)
        assert (study.engine.operation, study.engine.memory) == ("read", "DRAM")
        assert study.host.env == {"UCX_NET_DEVICES": "lo"}
        assert study.host.bind_address == "127.0.0.1"
        assert ucx_tls_of(study, "shm") == ["cma", "tcp"]
        assert ucx_tls_of(study, "tcp") == ["tcp"]
        assert len(make_design(study).cells) == 24

    def test_smoke_is_the_same_chain_with_little_in_it(self):
        study, loopback = compose(["study=smoke"], CONF), compose([], CONF)
        assert (study.prompt_tokens, study.launches) == ([256, 512], 2)
        assert arm_labels(study) == arm_labels(loopback)
        assert study.engine == loopback.engine
        assert study.model == loopback.model
        assert len(make_design(study).cells) == 8
        assert study.workload.pulls + study.workload.pulls_in_flight < 10

    def test_roce_vs_nvlink_carries_ucx_tls_as_published(self):
        study = compose(["study=roce_vs_nvlink"], CONF)
        environments = {a.label: a.environment["UCX_TLS"] for a in make_design(study).arms.values()}
        assert environments == {"nvlink": "rc_x,cuda_copy,cuda_ipc", "roce": "rc_x,cuda_copy"}
        assert (study.host.name, study.host.connection, len(study.host.gpus)) == ("b300", "ssh", 8)
        assert (study.engine.memory, study.engine.rank_pairs) == ("VRAM", 4)
        assert (study.workload.concurrency, study.baseline) == (30, "nvlink")

    def test_roce_vs_nvlink_quotes_the_published_ratios_and_measures_none_of_them(self):
        quoted = compose(["study=roce_vs_nvlink"], CONF).claims.quoted
        assert quoted["is_measured_here"] is False
        assert quoted["source"].startswith("RoCE vs NVLink for KV transfer")
        assert (quoted["arm"], quoted["baseline"]) == ("roce", "nvlink")
        assert quoted["ratios"]["pull_ms"] == {"4096": 0.66, "8192": 0.86, "16384": 0.73}
        assert quoted["ratios"]["post_ms"] == {"4096": 0.08, "8192": 0.12, "16384": 0.07}
        assert compose([], CONF).claims.quoted is None

    def test_tcp_can_join_the_published_study_with_gpu_memory(self):
        study = compose(["study=roce_vs_nvlink", "transport=[nvlink,roce,tcp]"], CONF)
        assert ucx_tls_of(study, "tcp") == ["tcp", "cuda_copy"]

    def test_transports_that_share_a_road_are_told_apart_by_their_link_layer(self):
        study = compose(["transport=[roce,infiniband]"], CONF)
        roce, infiniband = study.transports.values()
        assert roce.roads == infiniband.roads == ["rc_mlx5", "rc_verbs"]
        assert (roce.link_layer, infiniband.link_layer) == ("Ethernet", "InfiniBand")

    def test_variants_set_what_their_names_say(self):
        names = "blocks,again,b16,b32,b128,threads0,fragmented,push,push_sgl"
        arms = make_design(compose(["transport=[shm]", f"variant=[{names}]"], CONF)).arms
        assert arms["shm"].environment == arms["shm+again"].environment
        assert [arms[f"shm+b{n}"].workload.block_tokens for n in (16, 32, 128)] == [16, 32, 128]
        assert arms["shm+threads0"].engine.num_threads == 0
        assert arms["shm+fragmented"].engine.block_order == "fragmented"
        assert arms["shm+push"].engine.operation == "write"
        assert arms["shm+push_sgl"].engine.operation == "write"
        assert arms["shm+push_sgl"].environment["NIXL_UCX_SGL_ENABLE"] == "y"

    def test_variants_of_regions_are_their_operation_with_as_many_regions(self):
        names = [n for group, n in OPTIONS if group == "variant" and "regions" in n]
        assert len(names) == 18
        variants = compose([f"variant=[{','.join(names)},blocks,push,push_sgl]"], CONF).variants
        for name in names:
            operation, _, number = name.partition("regions")
            plain = variants[operation.rstrip("_") or "blocks"]
            assert variants[name].engine == {**plain.engine, "regions": int(number)}
            assert variants[name].env == plain.env

    def test_the_regions_study_holds_the_bytes_and_varies_their_pieces(self):
        study = compose(["study=regions"], CONF)
        layouts = [
            pull_layout(study.model, *variant_settings(study, variant), prompt_tokens)
            for variant in study.variants
            for prompt_tokens in study.prompt_tokens
        ]
        assert len({layout.n_bytes for layout in layouts}) == len(study.prompt_tokens)
        assert {layout.n_descriptors for layout in layouts} >= {1, 8, 64, 512, 4096, 16384}


class TestOverrides:
    def test_order_of_a_list_is_kept(self):
        assert arm_labels(compose(["transport=[tcp,shm]"], CONF)) == ["tcp", "shm"]

    def test_a_single_option_needs_no_brackets(self):
        assert arm_labels(compose(["transport=tcp"], CONF)) == ["tcp"]

    @pytest.mark.parametrize(
        ("overrides", "baseline"),
        [
            (["transport=[tcp,shm]"], "shm"),
            (["transport=[roce,tcp]"], "roce"),
            (["variant=[b16]"], "shm+b16"),
            (["baseline=tcp"], "tcp"),
            (["baseline=null"], "shm"),
        ],
    )
    def test_baseline_is_the_studys_or_else_the_first_arm(self, overrides, baseline):
        assert compose(overrides, CONF).baseline == baseline

    def test_the_last_override_of_a_key_wins_and_is_the_one_recorded(self):
        study = compose(["seed=1", "host=b300", "seed=2", "host=local"], CONF)
        assert (study.seed, study.host.name) == (2, "local")
        assert study.overrides == ["seed=2", "host=local"]

    def test_a_field_that_no_file_names_can_be_set(self, conf):
        engine = conf / "engine/nixl.yaml"
        engine.write_text("name: nixl\n")
        study = compose(["engine.nixl_version=1.5.1", "engine.env.UCX_IB_GID_INDEX=3"], conf)
        assert study.engine.nixl_version == "1.5.1"
        assert study.engine.env == {"UCX_IB_GID_INDEX": "3"}

    def test_a_transport_that_was_chosen_can_be_changed(self):
        overrides = ["transport.tcp.ucx_tls=['^cma']", "transport.tcp.env.UCX_TCP_MAX_NUM_EPS=4"]
        tcp = compose(overrides, CONF).transports["tcp"]
        assert (tcp.ucx_tls, tcp.env) == (["^cma"], {"UCX_TCP_MAX_NUM_EPS": "4"})
        assert tcp.roads == ["tcp"]

    def test_an_arm_can_be_made_up_on_the_spot(self):
        study = compose(["+variant.mine.engine.num_threads=2"], CONF)
        assert study.variants["mine"].engine == {"num_threads": 2}

    def test_what_was_overridden_is_in_the_slug(self):
        study = compose(["study=smoke", "transport=[shm, roce]"], CONF)
        assert study_slug(study) == "smoke+transport=[shm,roce]"
        assert study_slug(compose(["study=smoke"], CONF)) == "smoke"

    def test_no_password_is_kept(self):
        uri = "postgresql://me:secret@db/mlflow"
        study = compose([f"tracking.uri={uri}"], CONF)
        assert study.tracking.uri == uri
        assert "secret" not in f"{resolved(study)} {study.overrides} {study_slug(study)}"


KEYS = "(allowed: arms, baseline, claims, contrasts, engine, host, launches, model, name, "


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "prompt_tkens=[4096]",
            "unknown key 'prompt_tkens'; did you mean 'prompt_tokens'? " + KEYS,
        ),
        ("transports=[tcp]", "unknown key 'transports'; did you mean 'transport'?"),
        ("overrides=[a]", "unknown key 'overrides' " + KEYS),
        ("hydra.verbose=true", "unknown key 'hydra' " + KEYS),
        ("+x.y=1", "unknown key 'x' " + KEYS),
        ("engine.num_thread=0", "unknown key of engine: 'num_thread'; did you mean 'num_threads'?"),
        ("~engine.foo", "unknown key of engine: 'foo' (allowed: block_order,"),
        ("host.transports.roce.tls=[tcp]", "unknown key of host.transports.roce: 'tls'"),
        ("seed.x=1", "seed.x: seed is a value and has no keys"),
        ("transport@x=roce", "'@' is not supported"),
        (
            "transport=[nvlnk]",
            "unknown transport 'nvlnk'; did you mean 'nvlink'? "
            "(allowed: infiniband, none, nvlink, roce, shm, tcp)",
        ),
        ("transport=nvlnk", "unknown transport 'nvlnk'; did you mean 'nvlink'? (allowed: inf"),
        ("arms=[]", "arms is empty: leave it null"),
        ("arms=[shmm]", "arms: 'shmm' is not"),
        (
            "transport=[]",
            "transport is empty: name at least one (allowed: infiniband, none, nvlink,",
        ),
        ("transport=[shm,shm]", "transport: 'shm' is named twice"),
        ("transport=[[shm]]", "transport: ['shm'] is not an option (allowed: infiniband,"),
        ("transport=null", "transport: null is not an option (allowed: infiniband,"),
        ("transport=[shm", "the list is not closed; write transport=[shm]"),
        ("engine.env={A:1", "the mapping is not closed; write engine.env={A:1}"),
        (
            "transport=nvlink,roce",
            "transport=nvlink,roce: several values need brackets: transport=[nvlink,roce]",
        ),
        ("prompt_tokens=1,2", "several values need brackets: prompt_tokens=[1,2]"),
        (
            "transport.tcp.ucx_tls=rc_x,cuda_copy",
            "several values need brackets: transport.tcp.ucx_tls=[rc_x,cuda_copy]",
        ),
        ("engine.env.A=x,y", 'several values need quotes: engine.env.A="x,y"'),
        ("transport.tcp.ucx_tls=[^cma]", "token recognition error at: '^'; a value with other"),
        (
            "host=b30",
            f"unknown host 'b30'; did you mean 'b300'? (allowed: {HOSTS})",
        ),
        (
            "host=[]",
            f"host is empty: name at least one (allowed: {HOSTS})",
        ),
        ("host=[local,local]", "host: 'local' is named twice; once is enough"),
        ("host=[local,b30]", "unknown host 'b30'; did you mean 'b300'?"),
        ("host=local,b300", "several values need brackets: host=[local,b300]"),
        ("host={name: x}", "host: {'name': 'x'} is not an option"),
        ("study=smok", "unknown study 'smok'; did you mean 'smoke'? (allowed: "),
        ("variant=[b61]", "unknown variant 'b61'; did you mean 'b16'?"),
        ("model=gemma", "unknown model 'gemma'"),
        ("transport.roce.env.A=1", "unknown transport of this study 'roce' (allowed: shm, tcp)"),
        ("variant.b16.workload.pulls=1", "unknown variant of this study 'b16' (allowed: blocks)"),
        ("host.transports.rocee.ucx_tls=[tcp]", "'rocee'; did you mean 'roce'? (allowed: inf"),
        ("launches=four", "launches: 'four' is not a whole number"),
        ("launches=4.5", "launches: 4.5 is not a whole number"),
        ("launches=true", "launches: true is not a whole number"),
        ("launches=null", "launches: null is not a whole number"),
        ("launches=", "launches has no value: write launches=VALUE"),
        ("launches=3", "launches: 3 is not allowed; an even number, 2 or more"),
        ("prompt_tokens=4096", "prompt_tokens: 4096 is not a list, such as prompt_tokens=[4096]"),
        ("prompt_tokens=[]", "prompt_tokens is empty"),
        ("prompt_tokens=[a]", "prompt_tokens: 'a' is not a whole number"),
        ("engine.start_timeout_s=soon", "engine.start_timeout_s: 'soon' is not a number"),
        ("road.carried_at_least=inf", "road.carried_at_least: inf is not a number"),
        ("engine.env=3", "engine.env: 3 is not a mapping"),
        ("engine.env.A=true", "engine.env.A: true is not text; put the value in quotes"),
        ("engine.env.A=1e3", "engine.env.A: 1000.0 is not text; put the value in quotes"),
        ("engine.env.A=null", "engine.env.A: null is not text"),
        ("engine.env.UCX_TLS=tcp", "engine.env.UCX_TLS belongs to the transport"),
        ("transport.tcp.ucx_tls=[rcx]", "'rcx' is not a UCX transport; did you mean 'rc_x'? (all"),
        ("baseline=shn", "baseline: 'shn' is not allowed; did you mean 'shm'? (allowed: shm, tcp)"),
        ("baseline=roce", "baseline: 'roce' is not allowed (allowed: shm, tcp)"),
        ("contrasts=[[tcp,nvlink]]", "contrasts: 'nvlink' is not allowed (allowed: shm, tcp)"),
        ("variant.blocks.engine.nme=x", "unknown key of variant.blocks.engine: 'nme'; did you"),
        ("variant.blocks.engine.num_threads=x", "variant.blocks.engine.num_threads: 'x' is not a"),
        ("name=published", "name: 'published' is the folder of published reports"),
        ("session=../x", "session: '../x' becomes part of a file name"),
        ("seed=${nope}", "configuration: Interpolation key 'nope' not found"),
        ("host=ssh", "host.address is missing: connection ssh needs a name or an address"),
        ("~host", "host has no value"),
        ("+seed=1", "configuration: Could not append to config. An item is already at 'seed'"),
        ("engine.env.A='x\n',b", "several values need quotes"),
        ("", "override '' cannot be read"),
        ("seed", "override 'seed' cannot be read"),
    ],
)
def test_an_override_is_refused_in_one_line(override, message):
    assert message in refusal(override)


def test_an_override_that_the_host_would_hide_is_refused():
    message = refusal("study=roce_vs_nvlink", "transport.roce.ucx_tls=[rc_x,cuda_copy,tcp]")
    assert message == (
        "transport.roce.ucx_tls has no effect: the host sets its own; "
        "override host.transports.roce.ucx_tls"
    )
    override = "host.transports.roce.ucx_tls=[rc_x,cuda_copy,tcp]"
    study = compose(["study=roce_vs_nvlink", override], CONF)
    assert ucx_tls_of(study, "roce") == ["rc_x", "cuda_copy", "tcp"]


class TestFiles:
    """Mistakes in a file of conf/, as somebody who adds one makes them."""

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (
                "# @package transport.mine\nrods: [tcp]\nucx_tls: [tcp]\n",
                "unknown key of transport.mine: 'rods'; did you mean 'roads'?",
            ),
            (
                "# @package transport.mine\nroads: [tcp]\n",
                "transport.mine.ucx_tls is empty: name at least one UCX transport",
            ),
            (
                "# @package transport.mine\nroads: tcp\n",
                "transport.mine.roads: 'tcp' is not a list",
            ),
            (
                "roads: [tcp]\nucx_tls: [tcp]\n",
                "conf/transport: the file that sets 'roads' must begin with the line "
                "'# @package transport.NAME'",
            ),
            ("roads: [tcp\n", "configuration: while parsing a flow sequence"),
        ],
    )
    def test_a_transport(self, conf, text, message):
        (conf / "transport/mine.yaml").write_text(text)
        assert message in refusal("transport=[mine]", conf=conf)

    def test_a_new_transport_is_one_file(self, conf):
        text = "# @package transport.knem\nroads: [knem]\nucx_tls: [knem, tcp]\n"
        (conf / "transport/knem.yaml").write_text(text)
        assert arm_labels(compose(["transport=[shm,knem]"], conf)) == ["shm", "knem"]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (
                "defaults:\n  - override /transport: [roc]\n",
                "unknown transport 'roc'; did you mean",
            ),
            ("defaults:\n  - override /host: lcal\n", "unknown host 'lcal'; did you mean 'local'?"),
            ("prompt_tkens: [1]\n", "unknown key 'prompt_tkens'; did you mean 'prompt_tokens'?"),
            ("prompt_tokens: [1]\n", "name has no value"),
            (
                "name: mine\nprompt_tokens: [1]\ntransport: [shm]\n",
                "configuration: In 'study/mine': a list where keys belong; a file chooses options "
                "by '- override /GROUP: OPTION' under defaults",
            ),
            (
                "name: mine\nprompt_tokens: [1]\nhost: ssh\n",
                "host: 'ssh' is not a mapping; a file chooses options by "
                f"'- override /GROUP: OPTION' under defaults (allowed: {HOSTS})",
            ),
            ("name: mine\nprompt_tokens: [1]\nbaseline: tcpp\n", "'tcpp' is not allowed; did you"),
            ("name: mine\nprompt_tokens: [1]\nengine:\n  memory: ram\n", "engine.memory: 'ram' is"),
        ],
    )
    def test_a_study(self, conf, text, message):
        (conf / "study/mine.yaml").write_text(f"# @package _global_\n{text}")
        assert message in refusal("study=mine", conf=conf)

    def test_a_folder_without_configuration(self, tmp_path):
        assert refusal(conf=tmp_path) == f"configuration: {tmp_path}/config.yaml does not exist"
