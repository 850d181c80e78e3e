"""Small typed studies for tests that need no configuration files."""

from kvroad.study.fields import Claims, Engine, Host, Model, Study, Transport, Variant, Workload

GEMMA = Model(
    name="gemma-4-31b-it",
    num_hidden_layers=60,
    num_attention_heads=32,
    num_key_value_heads=16,
    head_dim=256,
    sliding_window=1024,
    layer_types=(["sliding_attention"] * 5 + ["full_attention"]) * 10,
    global_head_dim=512,
    num_global_key_value_heads=4,
)
TRANSPORTS = {
    "shm": Transport(roads=["cma"], ucx_tls=["cma", "tcp"]),
    "tcp": Transport(roads=["tcp"], ucx_tls=["tcp"], counters=["interface"]),
    "roce": Transport(
        roads=["rc_mlx5", "rc_verbs"],
        ucx_tls=["rc", "cuda_copy", "tcp"],
        counters=["nic"],
        link_layer="Ethernet",
    ),
}


def make_study(**changes: object) -> Study:
    """Return a two-arm study on this machine; keywords replace fields."""
    fields: dict[str, object] = {
        "name": "test",
        "host": Host("local", interfaces=["lo"], env={"UCX_NET_DEVICES": "lo"}),
        "engine": Engine(),
        "transports": {name: TRANSPORTS[name] for name in ("shm", "tcp")},
        "variants": {"blocks": Variant()},
        "model": GEMMA,
        "workload": Workload(),
        "claims": Claims(),
        "prompt_tokens": [4096, 8192, 16384],
        "launches": 4,
        "baseline": "shm",
    }
    return Study(**{**fields, **changes})  # type: ignore[arg-type]
