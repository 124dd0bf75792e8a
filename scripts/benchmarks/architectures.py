"""Random models of real architectures, small unless told otherwise.

Invariant: the same name, seed and shape give the same model; nothing is downloaded.
"""

from __future__ import annotations

import importlib
from typing import Any

import mlx.core as mx
import mlx.nn as nn

VOCAB = 96

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
}

_CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {},
    "gemma3_text": {
        "num_hidden_layers": 4,
        "sliding_window": 12,
        "sliding_window_pattern": 2,
        "query_pre_attn_scalar": 32,
        "rope_global_base_freq": 10000.0,
        "rope_local_base_freq": 10000.0,
        "rope_traditional": False,
    },
    "mamba": {
        "state_size": 8,
        "conv_kernel": 4,
        "use_bias": False,
        "use_conv_bias": True,
        "time_step_rank": 4,
    },
    "qwen3_next": {
        "num_hidden_layers": 4,
        "linear_num_value_heads": 2,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4,
        "num_experts": 0,
        "num_experts_per_tok": 0,
        "decoder_sparse_step": 1,
        "shared_expert_intermediate_size": 0,
        "mlp_only_layers": [],
        "moe_intermediate_size": 0,
        "partial_rotary_factor": 0.5,
        "full_attention_interval": 2,
    },
    "llama4": {
        "num_hidden_layers": 4,
        "attention_bias": False,
        "attention_chunk_size": 16,
        "interleave_moe_layer_step": 1,
        "intermediate_size_mlp": 64,
        "num_experts_per_tok": 1,
        "num_local_experts": 2,
        "use_qk_norm": True,
        "rope_scaling": None,
        "attn_temperature_tuning": False,
        "floor_scale": 8192,
        "attn_scale": 0.1,
    },
    "baichuan_m1": {
        "num_hidden_layers": 4,
        "sliding_window": 12,
        "sliding_window_layers": [1, 3],
        "conv_window": 2,
        "num_swa_attention_heads": 2,
        "num_swa_key_value_heads": 2,
    },
    "gpt_oss": {"num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 12},
    "qwen3": {},
    "qwen3_moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [0],
        "moe_intermediate_size": 64,
        "norm_topk_prob": True,
    },
    "deepseek_v3": {
        "kv_lora_rank": 64,
        "q_lora_rank": None,
        "qk_rope_head_dim": 32,
        "qk_nope_head_dim": 32,
        "v_head_dim": 32,
    },
}

ARCHITECTURES = tuple(_CONFIGS)


def random_model(name: str, seed: int = 0, **shape: Any) -> nn.Module:
    """A float32 model of an architecture of ``_CONFIGS``, with random weights.

    ``shape`` replaces numbers of its configuration.
    """
    mx.random.seed(seed)
    module = importlib.import_module(f"mlx_lm.models.{name}")
    model: nn.Module = module.Model(module.ModelArgs.from_dict(configuration(name, **shape)))
    model.set_dtype(mx.float32)
    mx.eval(model.parameters())
    return model


def configuration(name: str, **shape: Any) -> dict[str, Any]:
    """The ``config.json`` of such a model."""
    config = {"model_type": name, **_COMMON, **_CONFIGS[name], **shape}
    if name == "llama4":
        return {"model_type": name, "text_config": {**config, "model_type": "llama4_text"}}
    return config
