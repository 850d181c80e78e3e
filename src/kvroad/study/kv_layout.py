"""From a model's configuration to the descriptors of one rank's pull.

The layout is that of vLLM 0.23's ``NixlConnector``. Sources: the model's Hugging Face
``config.json`` for the shapes; vLLM 0.23 ``v1/core/kv_cache_utils.py`` (groups of layers
that share tensors, one page size for all) and the connector's ``_build_fa_local`` (one
descriptor per region and block, keys and values apart). That the layers of a hybrid
model are grouped and padded as below is INFERRED from the published descriptor counts,
not read from a running engine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvroad.errors import UserError
from kvroad.study.fields import DTYPE_BYTES, Engine, Model, Workload
from kvroad.study.kinds import ENGINES

__all__ = ["DTYPE_BYTES", "Group", "KvLayout", "in_regions", "kv_layout", "pull_layout"]

# NIXL merges descriptors that touch on both sides, so regions are kept a page apart.
_GAP_BYTES = 4096
# The replay writes and compares words of this size.
_WORD_BYTES = 8


@dataclass(frozen=True)
class Group:
    """Layers that share block ids.

    Parameters
    ----------
    kind
        ``full``, ``sliding``, ``mla`` or ``regions``.
    block_tokens
        Tokens in one block of this group; 0 where it is a region instead.
    n_blocks
        Blocks that a pull of the prompt takes from this group.
    """

    kind: str
    block_tokens: int
    n_blocks: int


@dataclass(frozen=True)
class KvLayout:
    """One rank's pull.

    Parameters
    ----------
    n_tensors
        Tensors that hold the cache; every group has its blocks in all of them.
    halves
        Regions per tensor: 2 where keys and values lie apart, else 1.
    descriptor_bytes
        Bytes of one descriptor: one block of one region.
    groups
        The groups, in order; their block ids are concatenated.
    gap_bytes
        Bytes that lie unused behind each descriptor.
    """

    n_tensors: int
    halves: int
    descriptor_bytes: int
    groups: tuple[Group, ...]
    gap_bytes: int = 0

    @property
    def n_blocks(self) -> int:
        """Blocks of a pull, summed over groups."""
        return sum(g.n_blocks for g in self.groups)

    @property
    def n_descriptors(self) -> int:
        """Descriptors of a pull: regions times blocks."""
        return self.n_tensors * self.halves * self.n_blocks

    @property
    def n_bytes(self) -> int:
        """Bytes of a pull."""
        return self.n_descriptors * self.descriptor_bytes

    @property
    def n_pool_bytes(self) -> int:
        """Bytes that a pull takes of a pool, gaps included."""
        return self.n_descriptors * (self.descriptor_bytes + self.gap_bytes)


def pull_layout(model: Model, engine: Engine, workload: Workload, prompt_tokens: int) -> KvLayout:
    """Return the layout of one rank's pull as an engine and a workload ask for it.

    Raises
    ------
    UserError
        Where the sizes do not divide.
    """
    layout = kv_layout(
        model,
        tensor_parallel_size=engine.tensor_parallel_size,
        block_tokens=workload.block_tokens,
        prompt_tokens=prompt_tokens,
    )
    return ENGINES[engine.name].layout(layout, engine, model)


def in_regions(layout: KvLayout, n_regions: int) -> KvLayout:
    """Return the same bytes as contiguous regions of equal size in one allocation.

    Raises
    ------
    UserError
        Where the bytes do not divide into that many regions of whole words.
    """
    n_words = layout.n_bytes // _WORD_BYTES
    if n_words % n_regions:
        below = next(k for k in range(min(n_regions, n_words), 0, -1) if n_words % k == 0)
        raise UserError(
            f"engine.regions={n_regions} does not divide a pull of {layout.n_bytes} bytes into "
            f"regions of whole {_WORD_BYTES}-byte words; the next smaller number is {below}"
        )
    size = layout.n_bytes // n_regions
    return KvLayout(1, 1, size, (Group("regions", 0, n_regions),), _GAP_BYTES)


def kv_layout(
    model: Model, *, tensor_parallel_size: int, block_tokens: int, prompt_tokens: int
) -> KvLayout:
    """Return the layout of one rank's pull of one prompt.

    Parameters
    ----------
    block_tokens
        The engine's ``--block-size``: tokens per block of the group with the largest
        bytes per token; other groups get the multiple that gives equal pages.
    prompt_tokens
        Tokens of the prompt.

    Raises
    ------
    UserError
        Where the sizes do not divide as vLLM needs them to.
    """
    size = DTYPE_BYTES[model.dtype]
    if model.kv_lora_rank is not None:
        latent = model.kv_lora_rank + (model.qk_rope_head_dim or 0)
        group = Group("mla", block_tokens, math.ceil(prompt_tokens / block_tokens))
        return KvLayout(model.num_hidden_layers, 1, block_tokens * latent * size, (group,))
    kinds = _layer_kinds(model)
    token_bytes = {k: _token_bytes(model, k, tensor_parallel_size) * size for k in kinds}
    page = block_tokens * max(token_bytes.values())
    n_tensors = min(kinds.values())
    groups = [
        Group(kind, blocks_of, _blocks(model, kind, blocks_of, prompt_tokens))
        for kind, n_layers in kinds.items()
        for blocks_of in [_group_block(page, token_bytes[kind], model.name, kind)]
        # ASSUME a kind with more layers than tensors is cut into groups of n_tensors layers.
        for _ in range(math.ceil(n_layers / n_tensors))
    ]
    return KvLayout(n_tensors, 2, page, tuple(groups))


def _layer_kinds(model: Model) -> dict[str, int]:
    if model.layer_types is None:
        return {"full": model.num_hidden_layers}
    n_sliding = model.layer_types.count("sliding_attention")
    counts = {"full": len(model.layer_types) - n_sliding, "sliding": n_sliding}
    return {kind: n for kind, n in counts.items() if n}


def _token_bytes(model: Model, kind: str, tensor_parallel_size: int) -> int:
    heads, head_dim = model.num_key_value_heads, model.head_dim
    if kind == "full":
        heads = model.num_global_key_value_heads or heads
        head_dim = model.global_head_dim or head_dim
    # vLLM replicates KV heads when there are fewer of them than ranks.
    if heads > tensor_parallel_size and heads % tensor_parallel_size:
        raise UserError(
            f"engine.tensor_parallel_size={tensor_parallel_size} does not divide the "
            f"{heads} KV heads of model {model.name}; allowed are divisors of {heads}"
        )
    return max(1, heads // tensor_parallel_size) * head_dim


def _group_block(page: int, token_bytes: int, name: str, kind: str) -> int:
    if page % token_bytes:
        raise UserError(
            f"model {name}: the {kind} layers' {token_bytes} bytes per token do not divide "
            f"the page of {page} bytes; choose another workload.block_tokens"
        )
    return page // token_bytes


def _blocks(model: Model, kind: str, block_tokens: int, prompt_tokens: int) -> int:
    """Blocks of one group; a sliding group keeps the window and one block it may straddle."""
    whole = math.ceil(prompt_tokens / block_tokens)
    if kind == "full" or model.sliding_window is None:
        return whole
    return min(whole, math.ceil((model.sliding_window - 1) / block_tokens) + 1)
