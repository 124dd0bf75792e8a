"""Multi-token-prediction heads: weights next to a model's own, which mlx-lm drops.

A head is a decoder layer that drafts from the hidden states of its model. mlx-lm builds, sanitises
and quantises it as a model of one layer, just as it does the whole model; of a head with several
layers only the first is used, as published heads have one. Invariant: a head that does not fit is
left out, with a warning in the log, and never keeps its model from being loaded.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from . import mlx_lm_first  # noqa: F401

# isort: split
import mlx.core as mx
import mlx.nn as nn
import mlx_lm.utils
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache

from ..errors import LoadError, WeightsError, failing
from .checkpoint import HEADS, Checkpoint
from .model_config import levels

logger = logging.getLogger(__name__)

_BLOCK = "model.layers.0."
"""The beginning of the decoder layer's names in a model of one layer."""
_INSIDE = "block.layers.0."
"""The same in a ``Head``."""
_ONE_LAYER = {
    "num_hidden_layers": 1,
    "layer_types": ["full_attention"],
    "full_attention_interval": 1,
    "moe_layer_freq": 1,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
_EXPERT = re.compile(r"(.*\.mlp)\.experts\.(\d+)\.(.*)")

# ---- how published checkpoints name the tensors of their heads ----


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a kind of head has its parts, and how it computes.

    - ``names``: the part for each beginning of a tensor's name, with ``{n}`` for the model's number
      of layers; the first that fits counts, and ``None`` is for what the model has, too.
    - ``state_first``: the projection takes the state before the embedding, not after it.
    - ``raw_states``: the head expects states from before the model's final norm.
    - ``centred``: the published RMS norms multiply by one more than their weights.
    """

    names: Mapping[str, str | None]
    state_first: bool = False
    raw_states: bool = False
    centred: bool = False

    def named(self, names: Collection[str], layers: int) -> dict[str, str]:
        """Maps the names of a head's tensors to their names in a ``Head``; empty without a head."""
        parts = {start.format(n=layers): part for start, part in self.names.items()}
        found = {}
        for name in names:
            plain = name
            for wrapper in ("model.language_model.", "language_model."):
                plain = plain.removeprefix(wrapper)
            start = next((start for start in parts if plain.startswith(start)), None)
            part = None if start is None else parts[start]
            if start is not None and part is not None:
                found[name] = part + plain.removeprefix(start)
        return found if "projection.weight" in found.values() else {}

    def published(self, message: str, layers: int) -> str:
        """A message with tensor names as they were published."""
        for start, part in self.names.items():
            if part is not None:
                theirs = start.format(n=layers)
                message = re.sub(rf"\b{re.escape(part.replace(_BLOCK, _INSIDE))}", theirs, message)
        return message


DEEPSEEK = Layout(
    {
        "model.layers.{n}.enorm.": "token_norm.",
        "model.layers.{n}.hnorm.": "state_norm.",
        "model.layers.{n}.eh_proj.": "projection.",
        "model.layers.{n}.shared_head.norm.": "norm.",
        "model.layers.{n}.shared_head.head.": None,
        "model.layers.{n}.embed_tokens.": None,
        "model.layers.{n}.": _BLOCK,
    }
)
"""DeepSeek V3 (arXiv 2412.19437) and those after it, GLM-4.5 and the demo model."""

QWEN = Layout(
    {
        "mtp.pre_fc_norm_embedding.": "token_norm.",
        "mtp.pre_fc_norm_hidden.": "state_norm.",
        "mtp.fc.": "projection.",
        "mtp.norm.": "norm.",
        "mtp.layers.0.": _BLOCK,
    },
    centred=True,
)
"""Qwen3-Next and Qwen3.5."""

MIMO = Layout(
    {
        "model.mtp_layers.0.token_layernorm.": "token_norm.",
        "model.mtp_layers.0.hidden_layernorm.": "state_norm.",
        "model.mtp_layers.0.input_proj.": "projection.",
        "model.mtp_layers.0.final_layernorm.": "norm.",
        "model.mtp_layers.0.": _BLOCK,
    },
    state_first=True,
)
"""MiMo (arXiv 2505.07608)."""

ERNIE = Layout(
    {
        "model.mtp_emb_norm.0.": "token_norm.",
        "model.mtp_hidden_norm.0.": "state_norm.",
        "model.mtp_linear_proj.0.": "projection.",
        "model.norm.": "norm.",  # that of the model
        "model.mtp_block.0.": _BLOCK,
    },
    raw_states=True,
)
"""Ernie 4.5, as it was trained (PaddlePaddle's ERNIEKit)."""


def layout_of(
    config: Mapping[str, Any], names: Collection[str]
) -> tuple[Layout, dict[str, str]] | None:
    """The layout of the head among these tensors, with its ``named``; ``None`` without a head."""
    layers = _layers(config)
    if layers is None or config.get("model_file") is not None:  # its own code
        return None
    for layout in (DEEPSEEK, QWEN, MIMO, ERNIE):
        if found := layout.named(names, layers):
            return layout, found
    return None


def without_head(config: Mapping[str, Any], weights: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """Weights without a head after the layers, which the model would take for another layer.

    mlx-lm drops it for most architectures, for DeepSeek V3 only if the model has 61 layers.
    """
    layers = _layers(config)
    if layers is None or not DEEPSEEK.named(weights, layers):
        return dict(weights)
    start = f"model.layers.{layers}."
    return {name: array for name, array in weights.items() if start not in name}


def _layers(config: Mapping[str, Any]) -> int | None:
    found = levels(config)[-1].get("num_hidden_layers")
    return found if isinstance(found, int) else None


# ---- how it computes ----


class Head(nn.Module):
    """The weights of a head; ``block``: mlx-lm's model of one layer, which loses its two ends."""

    def __init__(self, block: Any, layout: Layout) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        width, eps = block.norm.weight.size, block.norm.eps
        self.token_norm = nn.RMSNorm(width, eps)
        self.state_norm = nn.RMSNorm(width, eps)
        self.projection = nn.Linear(2 * width, width, bias=False)
        self.norm = nn.RMSNorm(width, eps)
        self.block = block
        block.embed_tokens, block.norm = nn.Identity(), nn.Identity()
        if hasattr(block, "ssm_idx"):
            block.ssm_idx = None  # no layer with a recurrent state
        self._state_first, self._raw_states = layout.state_first, layout.raw_states

    def __call__(self, embedded: mx.array, states: mx.array, cache: list[Any]) -> mx.array:
        if self._raw_states:  # undoes that norm, but for the length, which the next one ignores
            states = states / self.norm.weight
        pair = [self.token_norm(embedded), self.state_norm(states)]
        if self._state_first:
            pair.reverse()
        made = self.block(self.projection(mx.concatenate(pair, axis=-1)), cache)
        return cast(mx.array, self.norm(made))


class HeadPredictor:
    """A multi-token-prediction head with the embedding and the output head of its model: from a
    token and the state before it, it predicts the next token.

    It feeds on its own states, so it drafts any number of tokens, one after another. Entry ``i`` of
    its caches is of token ``i`` of the history and of the trunk's state from which that token was
    drawn: the state of token ``i - 1``, after the final norm, as the model's own head reads it. The
    first token gets a state of zeros. A state has ``width`` numbers; ``nbytes``: the size of the
    head's own weights.
    """

    def __init__(self, head: Head, trunk: Any, make_cache: Callable[[], list[Any]]) -> None:
        self._head, self.make_cache = head, make_cache
        self._trunk = text = inner_of(trunk)
        self._embed = text.model.embed_tokens
        self._logits = getattr(text, "lm_head", None) or self._embed.as_linear
        module: nn.Module = head
        weights = cast(list[tuple[str, mx.array]], tree_flatten(module.parameters()))
        self.nbytes = sum(array.nbytes for _, array in weights)
        self.width = int(head.norm.weight.size)

    def __call__(self, tokens: mx.array, states: mx.array, cache: list[Any]) -> mx.array:
        """The states after ``tokens`` [rows, n], given those before each [rows, n, width]."""
        return self._head(self._embed(tokens), states, cache)

    def trunk(self, inputs: mx.array, cache: list[Any], **given: Any) -> tuple[mx.array, mx.array]:
        """A pass of the model itself: its states [rows, n, width], and their logits."""
        states = self._trunk.model(inputs, cache=cache, **given)
        return states, self.logits(states)

    def logits(self, states: mx.array) -> mx.array:
        """The logits [rows, n, vocab] of ``states`` [rows, n, width]."""
        return cast(mx.array, self._logits(states))


def inner_of(model: Any) -> Any:
    """The text model of an mlx-lm model: the model itself, or the one inside a vision model."""
    return getattr(model, "language_model", model)


# ---- how it is read ----


def read_predictor(source: Checkpoint, folder: Path, trunk: Any) -> HeadPredictor | None:
    """The head of the model in ``folder``, with its weights evaluated; ``None`` if it has none.

    ``source``: the files that were found for the model, ``trunk``: the model without the head.
    """
    left_out = f"the multi-token-prediction head of {source.folder} is left out"
    layers, known = _layers(source.config), layout_of(source.config, source.tensors)
    if known is None:
        for name in source.tensors:
            if ".mtp" in f".{name}" or f".layers.{layers}." in name:
                logger.warning("%s: the layout of %s is unknown", left_out, name)
                break
        return None
    layout, names = known
    try:
        with failing(WeightsError, left_out):
            return _read(source, folder, trunk, layout, names)
    except LoadError as error:
        logger.warning("%s", layout.published(str(error), layers or 0))
        return None


def _read(
    source: Checkpoint, folder: Path, trunk: Any, layout: Layout, names: Mapping[str, str]
) -> HeadPredictor:
    """The head of a known ``layout``; ``names`` maps its tensors to parts of a ``Head``."""
    changes: dict[str, Any] = dict(_ONE_LAYER)
    sparse = any("experts." in name or "switch_mlp." in name for name in names)
    changes["first_k_dense_replace"] = 0 if sparse else 1
    if (level := levels(source.config)[-1]) is not source.config:
        changes = {"text_config": {**level, **changes}}
    if isinstance(how := source.config.get("quantization"), Mapping):  # not of single layers
        plain = {key: value for key, value in how.items() if not isinstance(value, Mapping)}
        changes["quantization"] = plain
    made: list[Any] = []  # mlx-lm's model of one layer

    def classes(config: dict[str, Any]) -> tuple[Any, Any]:
        model, arguments = mlx_lm.utils._get_classes(config)

        def make(values: Any) -> Head:
            made.append(model(values))
            head = Head(inner_of(made[0]).model, layout)
            head.sanitize = sanitised
            return head

        return make, SimpleNamespace(from_dict=arguments.from_dict)

    def sanitised(weights: dict[str, mx.array]) -> dict[str, mx.array]:
        """Out of all weights in a folder, those of the head in the form that it takes."""
        for file in folder.glob(HEADS):
            weights.update(mx.load(str(file)))  # type: ignore[arg-type]
        found = {part: weights[name] for name, part in names.items()}
        norms: dict[str, mx.array] = {}
        if layout.centred:  # mlx-lm shifts the model's, and perhaps these
            norms = {name: found.pop(name) for name in list(found) if "norm." in name}
            if _is_centred(norms, weights):
                norms = {name: array + 1 for name, array in norms.items()}
        if hasattr(made[0], "sanitize"):
            found = made[0].sanitize(found)
        found = {name.removeprefix("language_model."): array for name, array in found.items()}
        found = _stacked({**found, **norms})
        dtype = inner_of(trunk).model.norm.weight.dtype
        cast = getattr(made[0], "cast_predicate", lambda name: True)
        for name, array in found.items():
            if mx.issubdtype(array.dtype, mx.floating) and cast(name):
                found[name] = array.astype(dtype)
        return {name.replace(_BLOCK, _INSIDE): array for name, array in found.items()}

    head, config = mlx_lm.utils.load_model(
        folder, lazy=True, model_config=changes, get_model_classes=classes
    )
    how = config.get("quantization")
    if how and not any(name.endswith(".scales") for name in names):  # quantised like its model
        own = getattr(inner_of(made[0]), "quant_predicate", None)

        def wanted(path: str, part: nn.Module) -> Any:
            if not hasattr(part, "to_quantized") or part.weight.shape[-1] % how["group_size"]:
                return False
            return True if own is None else own(path, part)

        mode = how.get("mode", "affine")
        nn.quantize(head, how["group_size"], how["bits"], mode=mode, class_predicate=wanted)
    arrays = [each for part in head.modules() for each in part.values()]
    mx.eval([each for each in arrays if isinstance(each, mx.array)])
    return HeadPredictor(head, trunk, partial(make_prompt_cache, made[0]))


def _is_centred(norms: Mapping[str, mx.array], weights: Mapping[str, mx.array]) -> bool:
    """Whether weights of norms are as their makers publish them, less one.

    They are if the model's convolutions are as published. If a head was added to a converted model,
    its first norm tells: it damps the embedding, so its mean is negative only if one was
    subtracted.
    """
    convolved = (each for name, each in weights.items() if name.endswith("conv1d.weight"))
    if any(each.shape[-1] != 1 for each in convolved):
        return True
    return bool((norms["token_norm.weight"].mean() < 0).item())


def _stacked(weights: dict[str, mx.array]) -> dict[str, mx.array]:
    """The weights, with experts that are still separate stacked as mlx-lm has them."""
    found: dict[str, mx.array] = {}
    experts: dict[str, dict[int, mx.array]] = {}
    for name, array in weights.items():
        if match := _EXPERT.fullmatch(name):
            block, number, rest = match.groups()
            experts.setdefault(f"{block}.switch_mlp.{rest}", {})[int(number)] = array
        else:
            found[name] = array
    for name, parts in experts.items():
        found[name] = mx.stack([parts[number] for number in sorted(parts)])
    return found
