"""A tiny Muse Spark with random weights, which takes images, and images to show it."""

from __future__ import annotations

import io
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_map
from mlx_lm.models.muse_spark import Model, ModelArgs
from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, TokenizerWrapper

from mlxgen import LanguageModel
from mlxgen.loading.generation_config import GREEDY

from .muse_kernels import use_plain_kernels
from .tokenizers import byte_level_tokenizer

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% elif message['role'] == 'tool' %}{{ raise_exception('a tool says text') }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|patch|>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}"
    "{% for call in message['tool_calls'] or [] %}{{ call['function']['name'] }}(){% endfor %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKS = ("<|image_start|>", "<|patch|>", "<|image_end|>", "<think>", "</think>")
SQUARE = 28
"""The side of a patch, in pixels."""


def marked_tokenizer() -> TokenizerWrapper:
    """The byte-level tokenizer with marks of images and of thinking, and a template that has places
    for images in messages of the user."""
    plain = byte_level_tokenizer()
    fast: Any = plain._tokenizer
    fast.add_special_tokens({"additional_special_tokens": list(MARKS)})
    fast.chat_template = TEMPLATE
    ends = sorted(plain.eos_token_ids)
    return TokenizerWrapper(fast, BPEStreamingDetokenizer, eos_token_ids=ends)


def config_for(tokenizer: TokenizerWrapper) -> dict[str, Any]:
    """Two layers of text, one with a window, and two of a vision tower."""
    size = len(tokenizer)
    return {
        "model_type": "muse_spark",
        "image_token_id": tokenizer.convert_tokens_to_ids("<|patch|>"),
        "eos_token_id": sorted(tokenizer.eos_token_ids),
        "text_config": {
            "hidden_size": 32,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "num_hidden_layers": 2,
            "vocab_size": size,
            "rms_norm_eps": 1e-5,
            "post_norm_eps": 1e-5,
            "rope_parameters": {"rope_theta": 10000.0},
            "layer_rope_theta": [10000.0, 0.0],
            "layer_types": ["sliding_attention", "full_attention"],
            "sliding_window": 64,
            "final_logit_softcapping": 30.0,
            "output_multiplier": 1.0,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "moe_hidden_size": 32,
            "moe_intermediate_size": 32,
            "max_position_embeddings": 4096,
        },
        "vision_config": {
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "pos_emb_height": 4,
            "pos_emb_width": 4,
            "rope_parameters": {"rope_theta": 10000.0},
        },
    }


def seeing(**options: Any) -> LanguageModel:
    """The model, the same each time."""
    pytest.importorskip("PIL", reason="images need Pillow")
    use_plain_kernels()
    tokenizer = marked_tokenizer()
    config = config_for(tokenizer)
    mx.random.seed(3)
    model = Model(ModelArgs.from_dict(config))
    model.update(tree_map(lambda a: mx.random.normal(a.shape) * 0.3, model.parameters()))
    mx.eval(model.parameters())
    options.setdefault("recommended", GREEDY)
    return LanguageModel(model, tokenizer, config=config, name="seeing", **options)


def picture(seed: int, *, rows: int = 2, columns: int = 3) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """RGB values of an image of so many patches."""
    dice = np.random.default_rng(seed)
    return dice.integers(0, 255, (SQUARE * rows, SQUARE * columns, 3), dtype=np.uint8)


def png(seed: int, *, rows: int = 2, columns: int = 3) -> bytes:
    """The same as a file."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(picture(seed, rows=rows, columns=columns)).save(file, "PNG")
    return file.getvalue()


def asking(*images: Any, text: str = "what is it?") -> list[dict[str, Any]]:
    """A message with images."""
    parts = [{"type": "image", "image": image} for image in images]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]
