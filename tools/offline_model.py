"""Write a Llama with seeded random weights and a tokenizer of made-up words: no download.

Runs on the host (torch, safetensors). The shapes are those of ``conf/model/llama-1b-random.yaml``:
128 KiB of KV cache for each token, as Llama 3.1 8B has, from 1.2 billion parameters (2.3 GB).

Each token of the tokenizer is one whole word, so that any token ids survive being decoded and
encoded again. vLLM's benchmark makes its random prompts that way: with byte pairs of so small a
vocabulary some prompts come out longer than asked.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

_LAYERS, _HIDDEN, _INTERMEDIATE, _VOCABULARY = 32, 2048, 4096, 4096
_HEADS, _KV_HEADS, _HEAD_DIM = 16, 8, 128
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|unknown|>")
_LETTERS = "abcdefghijklmnop"  # 16 letters: 4096 words of three
_POSITIONS = 40960
_CHAT = (
    "{% for m in messages %}<|im_start|> {{ m['content'] }} <|im_end|> {% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>{% endif %}"
)


def main() -> None:
    """Write model and tokenizer into the folder that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(_config(), indent=1))
    print(f"{folder}: {_write_weights(folder)} parameters")


def write_tokenizer(folder: Path) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json``, as transformers reads them."""
    words = map("".join, itertools.product(_LETTERS, repeat=3))
    vocabulary = [*_SPECIAL, *itertools.islice(words, _VOCABULARY - len(_SPECIAL))]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": number, "content": text, **flags, "special": True}
            for number, text in enumerate(_SPECIAL)
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {text: number for number, text in enumerate(vocabulary)},
            "unk_token": _SPECIAL[3],
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": _SPECIAL[0],
        "eos_token": _SPECIAL[2],
        "pad_token": _SPECIAL[0],
        "unk_token": _SPECIAL[3],
        "clean_up_tokenization_spaces": False,
        "model_max_length": _POSITIONS,
        "chat_template": _CHAT,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1))


def _config() -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": _HIDDEN,
        "intermediate_size": _INTERMEDIATE,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS,
        "head_dim": _HEAD_DIM,
        "vocab_size": _VOCABULARY,
        "max_position_embeddings": _POSITIONS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "torch_dtype": "bfloat16",
    }


def _shapes() -> dict[str, tuple[int, ...]]:
    """Return the weights' names in the order in which they are drawn, with their shapes."""
    queries, keys = _HEADS * _HEAD_DIM, _KV_HEADS * _HEAD_DIM
    layer = {
        "input_layernorm": (_HIDDEN,),
        "self_attn.q_proj": (queries, _HIDDEN),
        "self_attn.k_proj": (keys, _HIDDEN),
        "self_attn.v_proj": (keys, _HIDDEN),
        "self_attn.o_proj": (_HIDDEN, queries),
        "post_attention_layernorm": (_HIDDEN,),
        "mlp.gate_proj": (_INTERMEDIATE, _HIDDEN),
        "mlp.up_proj": (_INTERMEDIATE, _HIDDEN),
        "mlp.down_proj": (_HIDDEN, _INTERMEDIATE),
    }
    return {
        "model.embed_tokens.weight": (_VOCABULARY, _HIDDEN),
        **{
            f"model.layers.{number}.{name}.weight": shape
            for number in range(_LAYERS)
            for name, shape in layer.items()
        },
        "model.norm.weight": (_HIDDEN,),
        "lm_head.weight": (_VOCABULARY, _HIDDEN),
    }


def _write_weights(folder: Path) -> int:
    """Draw the weights on the GPU if there is one, save them, and return how many they are."""
    import torch
    from safetensors.torch import save_file

    device = "cuda" if torch.cuda.is_available() else "cpu"
    source = torch.Generator(device).manual_seed(0)
    weights = {}
    for name, shape in _shapes().items():
        if len(shape) == 1:
            weights[name] = torch.ones(shape, dtype=torch.bfloat16)
            continue
        # Kept small, so that 32 layers of noise do not overflow; embeddings as large as norms.
        deviation = 1.0 if "embed_tokens" in name else 0.02
        drawn = torch.randn(shape, generator=source, device=device) * deviation
        weights[name] = drawn.to(torch.bfloat16).cpu()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return sum(tensor.numel() for tensor in weights.values())


if __name__ == "__main__":
    main()
