"""mlx-lm's image processor for a model, if it has one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..images import ImageProcessor


def image_processor(model: Any, tokenizer: Any, config: Mapping[str, Any]) -> ImageProcessor | None:
    """What reads images for a model; ``None`` for a model that takes none.

    A model takes images if mlx-lm has a processor for it, if it was loaded with its vision tower,
    and if the tokenizer knows the token of a patch.
    """
    if not config.get("vision_config") or not hasattr(model, "embed_inputs"):
        return None
    try:
        from mlx_lm.processors import load_processor
    except ImportError:  # an mlx-lm without any
        return None
    own = load_processor(model, dict(config))
    token = None if own is None else tokenizer.convert_tokens_to_ids(own.image_token)
    if token is None or token == getattr(tokenizer, "unk_token_id", None):
        return None
    return ImageProcessor(own, int(token))
