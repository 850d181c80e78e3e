import json
import re
from dataclasses import replace

import pytest

from kvroad.errors import UserError
from kvroad.study.arms import arm_label, arm_labels, ucx_tls_of, variant_settings
from kvroad.study.checks import validate
from kvroad.study.fields import (
    Claims,
    Engine,
    Host,
    HostSide,
    Model,
    RoadTolerances,
    Study,
    Tracking,
    Transport,
    TransportOverride,
    Variant,
    Workload,
)
from kvroad.study.name import resolved, study_slug, without_password
from kvroad.study.setting import Identity, settings_of
from kvroad.study.sides import SIDES, is_split, side_host
from kvroad.study.typed import config_keys

SHM = Transport(roads=["cma"], ucx_tls=["cma", "tcp"])
TCP = Transport(roads=["tcp"], ucx_tls=["tcp"], counters=["interface"])
MODEL = Model("tiny", 4, num_attention_heads=4, num_key_value_heads=2, head_dim=64)
STUDY = Study(
    name="small",
    host=Host("local"),
    engine=Engine(),
    transports={"shm": SHM, "tcp": TCP},
    variants={
        "blocks": Variant(),
        "b16": Variant(engine={"num_threads": 0}, workload={"block_tokens": 16}),
    },
    model=MODEL,
    workload=Workload(),
    claims=Claims(),
    prompt_tokens=[256, 512],
    launches=2,
    baseline="shm",
)


def refusal(study):
    with pytest.raises(UserError) as caught:
        validate(study)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_the_study_of_these_tests_is_valid():
    validate(STUDY)


def test_what_a_report_is_not_named_for_changes_no_cell():
    reaching = {name: said for name, said in settings_of(Host).items() if said.reaches}
    assert {"address", "work_dir", "lease_s"} <= set(reaching)
    assert {said.identity for said in reaching.values()} == {Identity.NO}


def test_a_half_has_what_it_says_and_the_rest_of_its_host():
    host = Host("pair", address="a", port=22, gpus=[0], decode=HostSide(address="b", gpus=[1]))
    assert is_split(host)
    assert not is_split(Host("one", address="a"))
    prefill, decode = (side_host(host, side) for side in SIDES)
    assert (prefill.name, prefill.address, prefill.gpus) == ("pair-prefill", "a", [0])
    assert (decode.name, decode.address, decode.port, decode.gpus) == ("pair-decode", "b", 22, [1])
    assert not is_split(decode)


def test_an_arm_is_named_for_its_transport_and_for_its_variant_unless_that_is_blocks():
    assert arm_label("tcp", "blocks") == "tcp"
    assert arm_label("tcp", "threads0") == "tcp+threads0"
    assert arm_labels(STUDY) == ["shm", "tcp", "shm+b16", "tcp+b16"]


def test_a_variant_changes_what_it_names_and_nothing_else():
    engine, workload = variant_settings(STUDY, "b16")
    assert engine == replace(STUDY.engine, num_threads=0)
    assert workload == replace(STUDY.workload, block_tokens=16)
    assert variant_settings(STUDY, "blocks") == (STUDY.engine, STUDY.workload)


def test_a_host_replaces_ucx_tls_of_the_transports_it_names():
    host = replace(
        STUDY.host,
        transports={
            "shm": TransportOverride(ucx_tls=["knem", "tcp"]),
            "tcp": TransportOverride(env={"UCX_TCP_CM_REUSEADDR": "y"}),
        },
    )
    study = replace(STUDY, host=host)
    assert ucx_tls_of(study, "shm") == ["knem", "tcp"]
    assert ucx_tls_of(study, "tcp") == ["tcp"]


def test_keys_of_the_configuration_are_the_fields_with_groups_in_the_singular():
    keys = set(config_keys())
    assert {"study", "transport", "variant", "prompt_tokens", "road", "tracking"} <= keys
    assert not keys & {"transports", "variants", "overrides"}


class TestResolved:
    def test_is_plain_and_survives_json(self):
        plain = resolved(STUDY)
        assert json.loads(json.dumps(plain)) == plain
        assert plain["transports"]["shm"]["ucx_tls"] == ["cma", "tcp"]
        assert plain["variants"]["b16"]["workload"] == {"block_tokens": 16}

    def test_a_field_that_was_added_later_is_written_where_it_says_something(self):
        assert "backend" not in resolved(STUDY)["transports"]["shm"]
        toy = replace(STUDY.transports["shm"], backend="toy")
        study = replace(STUDY, transports={"shm": toy})
        assert resolved(study)["transports"]["shm"]["backend"] == "toy"

    def test_masks_the_password_of_the_tracking_uri(self):
        study = replace(STUDY, tracking=Tracking(uri="postgresql://me:p:w@db:5432/mlflow"))
        assert resolved(study)["tracking"]["uri"] == "postgresql://me:***@db:5432/mlflow"

    @pytest.mark.parametrize("uri", ["sqlite:///mlflow.db", "http://host:5000", "http://me@host"])
    def test_leaves_a_uri_without_password_alone(self, uri):
        assert without_password(uri) == uri


class TestSlug:
    @pytest.mark.parametrize(
        ("overrides", "slug"),
        [
            ([], "small"),
            (["study=small"], "small"),
            (["study=small", "transport=[shm,roce]"], "small+transport=[shm,roce]"),
            (["host=ssh", "host.address=a", "++host.decode.port=1"], "small+host=ssh"),
            (["seed=2", "launches=6"], "small+launches=6+seed=2"),
            (["tracking.uri=sqlite:///other.db"], "small"),
            (["engine.num_threads=0"], "small+engine.num_threads=0"),
        ],
    )
    def test_reads_as_the_overrides(self, overrides, slug):
        assert study_slug(replace(STUDY, overrides=overrides)) == slug

    @pytest.mark.parametrize(
        "override",
        ["model.source=/opt/py/bin", "engine.env.A='x y'", "engine.env.A=é", "+variant=again"],
    )
    def test_what_cannot_be_spelled_out_gets_a_hash(self, override):
        slug = study_slug(replace(STUDY, overrides=[override]))
        assert re.fullmatch(r"small\+[A-Za-z0-9._+=,\[\]-]+-[0-9a-f]{10}", slug)

    def test_overrides_that_look_alike_do_not_share_a_folder(self):
        alike = [["engine.env.A='x/y'"], ["engine.env.A='x:y'"], ["seed=1+launches=2"]]
        alike.append(["seed=1", "launches=2"])
        assert len({study_slug(replace(STUDY, overrides=o)) for o in alike}) == 4

    def test_is_never_longer_than_a_hundred_characters(self):
        long = [f"engine.env.VARIABLE_{n}=1" for n in range(20)]
        slugs = {study_slug(replace(STUDY, overrides=o)) for o in (long, long[:-1])}
        assert len(slugs) == 2
        assert all(len(slug) <= 100 for slug in slugs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"launches": 3}, "launches: 3 is not allowed; an even number, 2 or more"),
        ({"launches": 0}, "launches: 0 is not allowed"),
        ({"launches": -2}, "launches: -2 is not allowed"),
        ({"prompt_tokens": []}, "prompt_tokens is empty"),
        ({"prompt_tokens": [256, 512, 256]}, "prompt_tokens: 256 is named twice"),
        ({"prompt_tokens": [0]}, "prompt_tokens: 0 is too small; allowed is 1 or more"),
        ({"seed": -1}, "seed: -1 is too small; allowed is 0 or more"),
        ({"baseline": "shn"}, "baseline: 'shn' is not allowed; did you mean 'shm'?"),
        ({"baseline": "tcp+b32"}, "did you mean 'tcp+b16'? (allowed: shm, tcp, shm+b16, tcp+b16)"),
        ({"contrasts": [["tcp", "roce"]]}, "contrasts: 'roce' is not allowed"),
        ({"contrasts": [["tcp"]]}, "contrasts: ['tcp'] is not a pair of two arms"),
        ({"contrasts": [["tcp", "tcp"]]}, "is not a pair of two arms"),
        ({"contrasts": []}, "contrasts is empty"),
        ({"prompt_tokens_of": {"tpc": [4096]}}, "prompt_tokens_of: 'tpc' is not allowed"),
        ({"prompt_tokens_of": {"tcp": []}}, "prompt_tokens_of.tcp is empty"),
        ({"prompt_tokens_of": {"tcp": [17]}}, "prompt_tokens_of.tcp: '17' is not allowed"),
        ({"retry": "always"}, "retry: 'always' is not allowed (allowed: unproven, none)"),
        ({"name": "a/b"}, "name: 'a/b' becomes part of a file name"),
        ({"session": ".."}, "session: '..' becomes part of a file name"),
        ({"session": ""}, "session: '' becomes part of a file name"),
        ({"session": "-x"}, "session: '-x' becomes part of a file name"),
        ({"session": "a\nb"}, r"session: 'a\nb' holds a line break or another control"),
        ({"host": Host("a b")}, "host.name: 'a b' becomes part of a file name"),
        ({"transports": {"../shm": SHM}}, "transport: '../shm' becomes part of a file name"),
        ({"transports": {"shm+x": SHM}}, "transport: 'shm+x' becomes part of a file name"),
        ({"variants": {"b/16": Variant()}}, "variant: 'b/16' becomes part of a file name"),
        ({"transports": {}}, "transport is empty"),
        ({"variants": {}}, "variant is empty"),
        ({"claims": Claims(alpha=1.0)}, "claims.alpha: 1.0 is too large; allowed is below 1"),
        (
            {"claims": Claims(margins={"pull_ms": 0.0})},
            "claims.margins.pull_ms: 0.0 is too small; allowed is above 0",
        ),
        (
            {"road": RoadTolerances(carried_at_least=1.2)},
            "1.2 is too large; allowed is 1",
        ),
        ({"road": RoadTolerances(0.95, 0.99)}, "above road.not_carried_at_most=0.99"),
        ({"road": RoadTolerances(not_carried_at_most=-1)}, "road.not_carried_at_most: -1"),
        ({"tracking": Tracking(uri="sqlite:///a\nb")}, r"tracking.uri: 'sqlite:///a\nb' holds"),
    ],
)
def test_refuses_a_study_that_cannot_be_meant(change, message):
    assert message in refusal(replace(STUDY, **change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "nxil"}, "engine.name: 'nxil' is not allowed; did you mean 'nixl'?"),
        ({"operation": "reed"}, "did you mean 'read'? (allowed: read, write)"),
        ({"memory": "vram"}, "engine.memory: 'vram' is not allowed (allowed: DRAM, VRAM)"),
        ({"cells_per_launch": "two"}, "engine.cells_per_launch: 'two' is not allowed"),
        ({"block_order": "old"}, "engine.block_order: 'old' is not allowed"),
        ({"num_threads": -1}, "engine.num_threads: -1 is too small; allowed is 0 or more"),
        ({"rank_pairs": 0}, "engine.rank_pairs: 0 is too small; allowed is 1 or more"),
        ({"rank_pairs": 8}, "engine.rank_pairs: 8 is more than the ranks there are"),
        ({"stop_timeout_s": 0.0}, "engine.stop_timeout_s: 0.0 is too small; allowed is above 0"),
        ({"start_timeout_s": float("nan")}, "engine.start_timeout_s: nan is not a number"),
        ({"phase_timeout_s": float("inf")}, "engine.phase_timeout_s: inf is not a number"),
        ({"env": {"A B": "1"}}, "engine.env: 'A B' is not the name of an environment variable"),
        ({"env": {"": "1"}}, "engine.env: '' is not the name of an environment variable"),
        ({"env": {"9A": "1"}}, "engine.env: '9A' is not the name"),
        ({"env": {"A": "x\ny"}}, r"engine.env.A: 'x\ny' holds a line break"),
        ({"env": {"A": "x\0y"}}, r"engine.env.A: 'x\x00y' holds a line break or another control"),
        ({"env": {"A": "\udcff"}}, r"engine.env.A: '\udcff' holds"),
        ({"env": {"UCX_TLS": "tcp"}}, "engine.env.UCX_TLS belongs to the transport"),
        ({"memory": "VRAM"}, "engine.memory: VRAM needs host.gpus"),
        ({"regions": 0}, "engine.regions: 0 is too small"),
        ({"regions": 7}, "variant blocks: engine.regions=7 does not divide a pull of"),
        ({"regions": 8, "cells_per_launch": "all"}, "set engine.cells_per_launch=one"),
    ],
)
def test_refuses_an_engine(change, message):
    assert message in refusal(replace(STUDY, engine=replace(STUDY.engine, **change)))


@pytest.mark.parametrize(
    ("variant", "message"),
    [
        (
            Variant(engine={"operation": "reed"}),
            "variant.v.engine.operation: 'reed'",
        ),
        (Variant(workload={"block_tokens": 0}), "variant.v.workload.block_tokens: 0 is too small"),
        (Variant(engine={"memory": "VRAM"}), "variant v: engine.memory: VRAM needs host.gpus"),
        (Variant(env={"UCX_TLS": "tcp"}), "variant.v.env.UCX_TLS belongs to the transport"),
        (Variant(env={"A=B": "1"}), "variant.v.env: 'A=B' is not the name"),
    ],
)
def test_refuses_a_variant_for_what_it_makes_of_engine_and_workload(variant, message):
    assert message in refusal(replace(STUDY, variants={**STUDY.variants, "v": variant}))


def test_refuses_side_channel_ports_beyond_the_last():
    two = replace(STUDY.engine, rank_pairs=2, side_channel_port=65534)
    validate(replace(STUDY, engine=two))
    message = refusal(replace(STUDY, engine=replace(two, side_channel_port=65535)))
    assert "engine.side_channel_port: 65535 is too large; allowed is 0 to 65534" in message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"roads": []}, "transport.shm.roads is empty"),
        ({"roads": ["cmaa"]}, "transport.shm.roads: 'cmaa' is not allowed; did you mean 'cma'?"),
        ({"roads": ["sm"]}, "transport.shm.roads: 'sm' is not allowed"),
        ({"ucx_tls": ["cma", "tpc"]}, "transport.shm.ucx_tls: 'tpc' is not a UCX transport"),
        ({"counters": ["nics"]}, "transport.shm.counters: 'nics' is not allowed"),
        ({"link_layer": "ethernet"}, "did you mean 'Ethernet'? (allowed: Ethernet, InfiniBand)"),
        ({"env": {"A-B": "1"}}, "transport.shm.env: 'A-B' is not the name"),
    ],
)
def test_refuses_a_transport(change, message):
    transports = {**STUDY.transports, "shm": replace(SHM, **change)}
    assert message in refusal(replace(STUDY, transports=transports))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"connection": "ssl"}, "host.connection: 'ssl' is not allowed; did you mean 'ssh'?"),
        ({"connection": "ssh"}, "host.address is missing"),
        ({"address": "-oProxyCommand=x"}, "host.address: '-oProxyCommand=x' is not allowed"),
        ({"user": "a b"}, "host.user: 'a b' is not allowed"),
        ({"bind_address": ""}, "host.bind_address: '' is not allowed"),
        ({"port": 0}, "host.port: 0 is too small"),
        ({"port": 65536}, "host.port: 65536 is too large; allowed is 65535 or less"),
        ({"gpus": [0, 0]}, "host.gpus: 0 is named twice; once is enough"),
        ({"gpus": [-1]}, "host.gpus: -1 is too small; allowed is 0 or more"),
        ({"interfaces": ["../lo"]}, "host.interfaces: '../lo' is not the name of a device"),
        ({"rdma_devices": ["mlx5_0/1"]}, "host.rdma_devices: 'mlx5_0/1' is not the name"),
        ({"python": "py\nthon"}, r"host.python: 'py\nthon' holds a line break"),
        ({"lease_s": 4.0}, "host.lease_s: 4.0 is too small; allowed is 5 or more"),
        ({"address": "a;b"}, "host.address: 'a;b' is not allowed"),
        ({"address": "$(x)"}, "host.address: '$(x)' is not allowed"),
        ({"user": "`x`"}, "host.user: '`x`' is not allowed"),
        ({"python": "-c"}, "host.python: '-c' is not a path"),
        ({"work_dir": " "}, "host.work_dir: ' ' is not a path"),
        ({"source": "-x"}, "host.source: '-x' is not a path"),
        ({"env": {"HF_TOKEN": "x"}}, "host.env.HF_TOKEN looks like a secret"),
        ({"env": {"A": "postgres://u:pw@h/d"}}, "host.env.A looks like a secret"),
        (
            {"connection": "ssh", "prefill": HostSide(address="a")},
            "host.address is missing",
        ),
        (
            {"connection": "ssh", "address": "a", "decode": HostSide(port=0)},
            "host.decode.port: 0 is too small",
        ),
        (
            {"prefill": HostSide(name="x"), "decode": HostSide(name="x")},
            "host.prefill.name and host.decode.name are both 'x'",
        ),
        ({"decode": HostSide(name="../x")}, "host.decode.name: '../x' becomes part of a file name"),
        ({"connection": "hand", "decode": HostSide(gpus=[1])}, "two hosts by hand cannot keep"),
        ({"price_per_hour": -1.0}, "host.price_per_hour: -1.0 is too small"),
        (
            {"transports": {"shm": TransportOverride(ucx_tls=["rcx"])}},
            "host.transports.shm.ucx_tls: 'rcx' is not a UCX transport",
        ),
        ({"transports": {"shm": TransportOverride(env={"1": ""})}}, "host.transports.shm.env: '1'"),
    ],
)
def test_refuses_a_host(change, message):
    assert message in refusal(replace(STUDY, host=replace(STUDY.host, **change)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head_dim": 0}, "model.head_dim: 0 is too small"),
        ({"dtype": "bf16"}, "model.dtype: 'bf16' is not allowed; did you mean 'bfloat16'? (allo"),
        ({"sliding_window": 0}, "model.sliding_window: 0 is too small"),
        ({"layer_types": ["full_attention"]}, "model.layer_types: 1 entries"),
        ({"layer_types": ["full"] * 4}, "'full' is not allowed (allowed: full_attention, sliding"),
        ({"layer_types": ["sliding_attention"] * 4}, "model.sliding_window is missing"),
    ],
)
def test_refuses_a_model(change, message):
    assert message in refusal(replace(STUDY, model=replace(MODEL, **change)))


def test_gpu_memory_needs_a_transport_that_sees_it():
    engine = replace(STUDY.engine, memory="VRAM")
    host = replace(STUDY.host, gpus=[0, 1])
    study = replace(STUDY, engine=engine, host=host, transports={"tcp": TCP}, baseline="tcp")
    assert "set transport.tcp.ucx_tls=[tcp,cuda_copy]" in refusal(study)
    for entries in (["tcp", "cuda_copy"], ["tcp", "cuda"], ["^cuda_ipc"], ["all"]):
        validate(replace(study, transports={"tcp": replace(TCP, ucx_tls=entries)}))
    negated = replace(study, transports={"tcp": replace(TCP, ucx_tls=["^cuda"])})
    assert "without cuda_copy" in refusal(negated)
