"""mlx-lm's fused kernels of Muse Spark in plain operations, as they run on Metal only.

The sums are taken in float32 and rounded where the kernels round.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import muse_spark


def use_plain_kernels() -> None:
    """Let the model run without Metal, in this process."""
    if mx.metal.is_available():
        return
    plain: Any = muse_spark
    plain.qk_norm = qk_norm
    plain.qk_norm_rope = qk_norm_rope
    plain.rms_norm_sigmoid_gate = rms_norm_sigmoid_gate
    plain.norm_add_norm = norm_add_norm
    plain.expert_routing = expert_routing
    plain.post_expert_norm_combine = post_expert_norm_combine


def _normed(x: mx.array, eps: float) -> mx.array:
    return mx.fast.rms_norm(x.astype(mx.float32), None, eps)


def qk_norm(
    qkvg: mx.array,
    *,
    n_heads: int,
    n_kv_heads: int,
    head_dim: int,
    eps: float,
    query_scale: float,
) -> tuple[mx.array, mx.array]:
    both = qkvg[..., : (n_heads + n_kv_heads) * head_dim]
    heads = _normed(both.reshape(*qkvg.shape[:-1], n_heads + n_kv_heads, head_dim), eps)
    queries, keys = heads[..., :n_heads, :] * query_scale, heads[..., n_heads:, :]
    return queries.astype(qkvg.dtype), keys.astype(qkvg.dtype)


def qk_norm_rope(
    qkvg: mx.array, *, rope_base: float, offset: int | mx.array, **more: Any
) -> list[mx.array]:
    def turned(heads: mx.array) -> mx.array:
        return mx.fast.rope(
            heads.transpose(0, 2, 1, 3),
            heads.shape[-1],
            traditional=True,
            base=rope_base,
            scale=1.0,
            offset=offset,
        ).transpose(0, 2, 1, 3)

    return [turned(heads) for heads in qk_norm(qkvg, **more)]


def rms_norm_sigmoid_gate(x: mx.array, gate: mx.array, *, eps: float) -> mx.array:
    rows = _normed(x, eps).transpose(0, 2, 1, 3).reshape(gate.shape)
    return (rows * mx.sigmoid(gate.astype(mx.float32))).astype(x.dtype)


def norm_add_norm(
    branch: mx.array,
    stream: mx.array,
    *,
    alpha: mx.array,
    beta: mx.array,
    post_weight: mx.array | None,
    post_eps: float,
    next_norm: nn.RMSNorm | None,
) -> tuple[mx.array, mx.array | None]:
    if post_weight is not None:
        branch = post_weight.astype(branch.dtype) * branch
    new = alpha * stream + beta * _normed(branch, post_eps).astype(branch.dtype)
    return new, None if next_norm is None else next_norm(new).astype(branch.dtype)


def expert_routing(
    logits: mx.array,
    expert_bias: mx.array,
    *,
    top_k: int,
    multiplier: float,
    score_eps: float,
    route_scale: float,
) -> tuple[mx.array, mx.array]:
    scores = mx.sigmoid(logits * multiplier)
    chosen = mx.argsort(-(scores + expert_bias), axis=-1)[..., :top_k]
    weights = mx.take_along_axis(scores, chosen, axis=-1)
    return chosen, weights / (weights.sum(axis=-1, keepdims=True) + score_eps) * route_scale


def post_expert_norm_combine(
    experts: mx.array, weights: mx.array, *, norm_weight: mx.array, eps: float
) -> mx.array:
    rows = _normed(experts.astype(mx.float32) * norm_weight.astype(mx.float32), eps)
    return (rows * weights[..., None]).sum(axis=-2).astype(experts.dtype)
