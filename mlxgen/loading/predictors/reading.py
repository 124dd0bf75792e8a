"""Reads the multi-token-prediction head that a checkpoint has beside its model.

The head's decoder layer is that of a model of one layer, which mlx-lm builds, sanitises and
quantises as it does the whole one. Invariant: a head that does not fit is left out, with a warning
in the log, and never keeps its model from being loaded.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from .. import mlx_lm_first  # noqa: F401

# isort: split
import mlx.core as mx
import mlx.nn as nn
import mlx_lm.utils
from mlx_lm.models.cache import make_prompt_cache

from ...errors import LoadError, WeightsError, failing
from ..checkpoint import HEADS, Checkpoint
from ..model_config import levels
from .head import Head, HeadPredictor, inner_of
from .layout import BLOCK, DEEPSEEK, Layout, layout_of, unknown

logger = logging.getLogger(__name__)

_ONE_LAYER = {
    "num_hidden_layers": 1,
    "layer_types": ["full_attention"],
    "full_attention_interval": 1,
    "moe_layer_freq": 1,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
_INSIDE = "block.layers.0."
"""``BLOCK``, as a ``Head`` has it."""
_PART = re.compile(rf"\b(?:token_norm|state_norm|projection|norm|{re.escape(_INSIDE[:-1])})\.")
_EXPERT = re.compile(r"(.*\.mlp)\.experts\.(\d+)\.(.*)")


def read_predictor(source: Checkpoint, folder: Path, trunk: Any) -> HeadPredictor | None:
    """The head of the model in ``folder``, with its weights evaluated; ``None`` if it has none.

    ``source`` is what is known of the folder, ``trunk`` the model without the head.
    """
    left_out = f"the multi-token-prediction head of {source.folder} is left out"
    known = layout_of(source.config, source.tensors)
    if known is None:
        if (name := unknown(source.config, source.tensors)) is not None:
            logger.warning("%s: the layout of %s is unknown", left_out, name)
        return None
    layout, names = known
    try:
        with failing(WeightsError, left_out):
            return _read(source, folder, trunk, layout, names)
    except LoadError as error:
        logger.warning("%s", _published(str(error), layout, source.config))
        return None


def without_head(make: Callable[[Any], Any], config: Mapping[str, Any]) -> Callable[[Any], Any]:
    """``make`` for models that do not take the head after their layers for one of these.

    mlx-lm drops it for most architectures, for DeepSeek V3 only if the model has 61 layers.
    """
    layers = levels(config)[-1].get("num_hidden_layers")
    if not isinstance(layers, int):
        return make

    def made(arguments: Any) -> Any:
        model = make(arguments)

        def load_weights(weights: Iterable[tuple[str, mx.array]], strict: bool = True) -> Any:
            del model.load_weights
            found = dict(weights)
            if DEEPSEEK.named(found, layers):
                start = f"model.layers.{layers}."
                found = {name: array for name, array in found.items() if start not in name}
            return model.load_weights(list(found.items()), strict=strict)

        model.load_weights = load_weights
        return model

    return made


def _read(
    source: Checkpoint, folder: Path, trunk: Any, layout: Layout, names: Mapping[str, str]
) -> HeadPredictor:
    """The head of a known ``layout``; ``names`` are those of its tensors, as parts of it."""
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
        """Of all weights in a folder, those of the head as it takes them."""
        for file in folder.glob(HEADS):
            weights.update(mx.load(str(file)))  # type: ignore[arg-type]
        found = {part: weights[name] for name, part in names.items()}
        norms: dict[str, mx.array] = {}
        if layout.centred:  # mlx-lm shifts those of the model, and may or may not those here
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
        return {name.replace(BLOCK, _INSIDE): array for name, array in found.items()}

    head, config = mlx_lm.utils.load_model(
        folder, lazy=True, model_config=changes, get_model_classes=classes
    )
    how = config.get("quantization")
    if how and not any(name.endswith(".scales") for name in names):  # as its model is
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

    They are if the convolutions beside them are; where a head was put beside a converted model,
    its first norms tell: they damp what is embedded, so only a missing one makes them negative.
    """
    convolved = (each for name, each in weights.items() if name.endswith("conv1d.weight"))
    if any(each.shape[-1] != 1 for each in convolved):
        return True
    return bool((norms["token_norm.weight"].mean() < 0).item())


def _stacked(weights: dict[str, mx.array]) -> dict[str, mx.array]:
    """Weights with the experts that are still one by one as mlx-lm has them."""
    found = {name: _EXPERT.fullmatch(name) for name in weights}
    experts: dict[str, dict[int, mx.array]] = {}
    for name, match in found.items():
        if match is not None:
            block, number, rest = match.groups()
            experts.setdefault(f"{block}.switch_mlp.{rest}", {})[int(number)] = weights[name]
    others = {name: weights[name] for name, match in found.items() if match is None}
    return others | {
        name: mx.stack([parts[number] for number in sorted(parts)])
        for name, parts in experts.items()
    }


def _published(message: str, layout: Layout, config: Mapping[str, Any]) -> str:
    """A message with the makers' names of tensors."""
    layers = levels(config)[-1].get("num_hidden_layers")
    starts = {part: start.format(n=layers) for start, part in layout.names.items()}

    def theirs(match: re.Match[str]) -> str:
        return starts.get(match[0].replace(_INSIDE, BLOCK)) or match[0]

    return _PART.sub(theirs, message)
