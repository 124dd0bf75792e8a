"""What llama.cpp's ``/props`` and ``/slots`` say, as far as it applies here.

Invariant: ``params`` are the values that a chat without any options runs with, the sampling ones by
the names of our requests; nothing else computes them.
"""

from __future__ import annotations

from typing import Any

from ... import __version__
from ...options.table import SamplingOptions, checked
from ..served_model import ServedModel

_UNLIMITED = -1  # llama.cpp's value for as many tokens as the context holds
_ORDER = ("penalties", "dry", "top_p", "min_p", "xtc", "top_k", "temperature")
"""How tokens are drawn, in llama.cpp's words."""


def in_force(model: ServedModel) -> dict[str, Any]:
    """Every sampling field of a request, with its default value."""
    values = checked(model.sampling)
    return {name: values[name] for name in SamplingOptions.__annotations__ if name != "logit_bias"}


def props_of(model: ServedModel, *, slots: int, path: str | None) -> dict[str, Any]:
    """The answer; ``slots``: how many sequences may run at a time; ``path``: the model as it was
    given to the server."""
    sampling = in_force(model)
    return {
        "default_generation_settings": {
            "id": 0,
            "n_ctx": model.max_context,
            "is_processing": False,
            "params": {
                **sampling,
                "repeat_penalty": sampling["repetition_penalty"],
                "repeat_last_n": sampling["repetition_context_size"] or _UNLIMITED,
                "n_predict": _UNLIMITED,
                "max_tokens": _UNLIMITED,
                "ignore_eos": False,
                "samplers": _ORDER,
                "seed": -1,
                "stop": [],
                "stream": False,
            },
        },
        "sampling_defaults": model.sampling_choice,
        "n_ctx": model.max_context,
        "total_slots": slots,
        "model_alias": model.name,
        "model_path": path or model.name,
        "modalities": {"vision": model.dialect.images is not None, "audio": False},
        "chat_template": model.chat_template,
        "bos_token": model.bos_token,
        "eos_token": model.eos_token,
        "endpoint_slots": True,
        "endpoint_metrics": True,
        "endpoint_props": False,  # they cannot be changed
        "is_sleeping": False,
        "build_info": f"mlxgen {__version__}",
    }


def slots_of(model: ServedModel | None, *, busy: int, slots: int) -> list[dict[str, Any]]:
    """What ``/slots`` says; ``busy`` of the places are taken. No model: it is being loaded."""
    context = None if model is None else model.max_context
    return [
        {"id": index, "n_ctx": context, "is_processing": index < busy} for index in range(slots)
    ]
