from pathlib import Path

import pytest
from studies import GEMMA

from kvroad.errors import UserError
from kvroad.study.compose import compose
from kvroad.study.fields import Engine, Model, Workload
from kvroad.study.kv_layout import in_regions, kv_layout, pull_layout

CONF = Path(__file__).parents[2] / "conf"
LLAMA = Model("llama-3.1-8b", 32, 32, 8, 128)
MLA = Model("latent", 61, 128, 128, 128, kv_lora_rank=512, qk_rope_head_dim=64)


@pytest.mark.parametrize(
    ("prompt_tokens", "descriptors"), [(4096, 2340), (8192, 2980), (16384, 4260)]
)
def test_gemma_matches_the_published_descriptors(prompt_tokens: int, descriptors: int) -> None:
    layout = kv_layout(GEMMA, tensor_parallel_size=4, block_tokens=64, prompt_tokens=prompt_tokens)
    assert layout.n_descriptors == descriptors
    assert layout.descriptor_bytes == 131072
    assert layout.n_bytes == descriptors * 131072


@pytest.mark.parametrize(("block", "descriptors", "size"), [(16, 9060, 32768), (128, 1220, 262144)])
def test_block_size_trades_count_for_size(block: int, descriptors: int, size: int) -> None:
    layout = kv_layout(GEMMA, tensor_parallel_size=4, block_tokens=block, prompt_tokens=4096)
    assert (layout.n_descriptors, layout.descriptor_bytes) == (descriptors, size)


def test_a_sliding_group_keeps_the_window_and_one_block_more() -> None:
    layout = kv_layout(GEMMA, tensor_parallel_size=4, block_tokens=64, prompt_tokens=65536)
    assert [g.n_blocks for g in layout.groups] == [512, 17, 17, 17, 17, 17]


def test_a_prompt_shorter_than_the_window_takes_no_more_blocks_than_it_fills() -> None:
    layout = kv_layout(GEMMA, tensor_parallel_size=4, block_tokens=64, prompt_tokens=128)
    assert [g.n_blocks for g in layout.groups] == [1, 2, 2, 2, 2, 2]


def test_a_uniform_model_has_one_group() -> None:
    layout = kv_layout(LLAMA, tensor_parallel_size=1, block_tokens=16, prompt_tokens=4096)
    assert len(layout.groups) == 1
    assert layout.n_descriptors == 2 * 32 * 256
    assert layout.descriptor_bytes == 16 * 8 * 128 * 2
    # 128 KiB per token over all layers, as the model card's shapes give.
    assert layout.n_bytes == 4096 * 131072


def test_a_started_block_is_pulled_whole() -> None:
    layout = kv_layout(LLAMA, tensor_parallel_size=1, block_tokens=16, prompt_tokens=17)
    assert layout.n_blocks == 2


def test_latent_attention_has_one_region_per_layer_on_every_rank() -> None:
    one = kv_layout(MLA, tensor_parallel_size=1, block_tokens=64, prompt_tokens=4096)
    eight = kv_layout(MLA, tensor_parallel_size=8, block_tokens=64, prompt_tokens=4096)
    assert one == eight
    assert one.n_descriptors == 61 * 64
    assert one.descriptor_bytes == 64 * 576 * 2


def test_heads_are_replicated_beyond_one_per_rank() -> None:
    eight = kv_layout(LLAMA, tensor_parallel_size=8, block_tokens=16, prompt_tokens=16)
    sixteen = kv_layout(LLAMA, tensor_parallel_size=16, block_tokens=16, prompt_tokens=16)
    assert eight.descriptor_bytes == sixteen.descriptor_bytes == 16 * 128 * 2


def test_ranks_that_do_not_divide_the_heads_are_refused() -> None:
    with pytest.raises(UserError, match=r"tensor_parallel_size=3 does not divide the 8 KV heads"):
        kv_layout(LLAMA, tensor_parallel_size=3, block_tokens=16, prompt_tokens=16)


@pytest.mark.parametrize("n_regions", [1, 8, 64, 512, 4096, 16384])
def test_regions_hold_the_same_bytes_with_a_gap_between_them(n_regions: int) -> None:
    blocks = pull_layout(GEMMA, Engine(), Workload(), 4096)
    regions = pull_layout(GEMMA, Engine(regions=n_regions), Workload(), 4096)
    assert regions.n_descriptors == n_regions
    assert regions.n_bytes == blocks.n_bytes == 306_708_480
    assert regions.descriptor_bytes * n_regions == blocks.n_bytes
    assert regions.n_pool_bytes == blocks.n_bytes + n_regions * regions.gap_bytes
    assert regions.gap_bytes > 0
    assert blocks.n_pool_bytes == blocks.n_bytes


def test_regions_that_do_not_divide_the_bytes_are_refused_with_a_number_that_does() -> None:
    blocks = kv_layout(GEMMA, tensor_parallel_size=4, block_tokens=64, prompt_tokens=4096)
    with pytest.raises(UserError, match=r"regions=7 does not divide .* next smaller number is 6"):
        in_regions(blocks, 7)


@pytest.mark.parametrize(
    ("model", "ranks", "prompt_tokens", "descriptors", "size", "token_bytes"),
    [
        # 2 halves x 80 layers x 64 blocks of 64 tokens; 8 heads x 128 x 2 bytes per half.
        ("llama-3.3-70b", 1, 4096, 10_240, 131_072, 327_680),
        ("llama-3.3-70b", 4, 4096, 10_240, 32_768, 81_920),
        ("llama-3.3-70b", 8, 16384, 40_960, 16_384, 40_960),
        # 2 x 64 layers x 64 blocks.
        ("qwen3-32b", 1, 4096, 8_192, 131_072, 262_144),
        ("qwen3-32b", 2, 4096, 8_192, 65_536, 131_072),
        # 1 x 61 layers x 64 blocks of (512 + 64) x 2 bytes per token, on every rank alike.
        ("deepseek-v3", 1, 4096, 3_904, 73_728, 70_272),
        ("deepseek-v3", 8, 4096, 3_904, 73_728, 70_272),
    ],
)
def test_models_of_the_configuration(
    model: str, ranks: int, prompt_tokens: int, descriptors: int, size: int, token_bytes: int
) -> None:
    shapes = compose([f"model={model}", "transport=[shm]"], CONF).model
    layout = kv_layout(
        shapes, tensor_parallel_size=ranks, block_tokens=64, prompt_tokens=prompt_tokens
    )
    assert (layout.n_descriptors, layout.descriptor_bytes) == (descriptors, size)
    assert layout.n_bytes == prompt_tokens * token_bytes
    assert shapes.source.startswith("config.json of ")
