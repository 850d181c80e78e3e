import pytest
from studies import GEMMA

from kvroad.errors import UserError
from kvroad.kv_layout import kv_layout
from kvroad.study import Model

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
