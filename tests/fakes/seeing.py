"""A tiny Muse Spark with random weights, which takes images, and images to show it."""

from __future__ import annotations

import io
import json
from pathlib import Path
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
CONFIG = Path(__file__).parents[1] / "data" / "muse_spark.json"
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
    config: dict[str, Any] = json.loads(CONFIG.read_text(encoding="utf-8"))
    config["image_token_id"] = tokenizer.convert_tokens_to_ids("<|patch|>")
    config["eos_token_id"] = sorted(tokenizer.eos_token_ids)
    config["text_config"]["vocab_size"] = len(tokenizer)
    return config


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
