"""What holds where a request says nothing of sampling."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, get_args

import pytest

from mlxgen.engine.options import Options
from mlxgen.loading.generation_config import CHOICES, GREEDY, SamplingChoice, sampling_defaults
from mlxgen.server.ask import Ask
from mlxgen.server.chat import parse_chat
from mlxgen.server.completions import parse_completion
from mlxgen.server.llama import in_force, props_of, slots_of
from mlxgen.server.served_model import ServedModel

from .kit import HELLO, demo

RECOMMENDED = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "repetition_penalty": 1.05}
PARSERS: list[tuple[Callable[[Any, ServedModel], Ask], dict[str, Any]]] = [
    (parse_chat, {"messages": HELLO}),
    (parse_completion, {"prompt": "Once upon a time"}),
]


def served_with(choice: SamplingChoice, recommended: Mapping[str, Any]) -> ServedModel:
    defaults = sampling_defaults(choice, recommended)
    return replace(demo(), sampling=defaults, sampling_choice=choice)


def test_every_choice_is_offered() -> None:
    assert get_args(SamplingChoice) == CHOICES


@pytest.mark.parametrize(
    ("choice", "recommended", "expected"),
    [
        ("model", RECOMMENDED, RECOMMENDED),
        ("model", {}, {"temperature": 0.7, "top_p": 0.95, "min_p": 0.05}),
        ("model", {"temperature": 0.0}, {"temperature": 0.0}),
        ("greedy", RECOMMENDED, {"temperature": 0.0}),
        ("openai", RECOMMENDED, {"temperature": 1.0, "top_p": 1.0}),
    ],
)
@pytest.mark.parametrize(("parse", "body"), PARSERS)
def test_a_request_that_says_nothing_or_null_gets_the_defaults(
    parse: Callable[[Any, ServedModel], Ask],
    body: dict[str, Any],
    choice: SamplingChoice,
    recommended: dict[str, Any],
    expected: dict[str, Any],
) -> None:
    model = served_with(choice, recommended)
    nothing = dict.fromkeys(in_force(model))
    for request in (body, body | nothing):
        sampling = parse(request, model).jobs[0].options.sampling
        assert sampling == Options.of(expected).sampling
    assert in_force(model).items() >= expected.items()


def test_what_a_request_says_stands_beside_the_other_defaults() -> None:
    model = served_with("model", RECOMMENDED)
    body = {"messages": HELLO, "temperature": 0, "top_k": -1}
    sampling = parse_chat(body, model).jobs[0].options.sampling
    assert (sampling.temperature, sampling.top_k) == (0, 0)
    assert (sampling.top_p, sampling.repetition_penalty) == (0.95, 1.05)


def test_props_have_the_names_of_llama_cpp() -> None:
    model = served_with("model", RECOMMENDED)
    props = props_of(model, slots=4, path="models/demo")
    params = props["default_generation_settings"]["params"]
    assert params.items() >= RECOMMENDED.items()
    assert params["repeat_penalty"] == 1.05 and params["n_predict"] == -1
    assert props["default_generation_settings"]["n_ctx"] == model.max_context == props["n_ctx"]
    assert (props["total_slots"], props["model_path"]) == (4, "models/demo")
    assert props["model_alias"] == model.name and props["sampling_defaults"] == "model"
    assert "enable_thinking" in props["chat_template"]
    assert (props["bos_token"], props["eos_token"]) == (model.bos_token, "<|im_end|>")
    assert props["build_info"].startswith("mlxgen ")
    assert (props["endpoint_slots"], props["endpoint_metrics"]) == (True, True)
    assert params["samplers"][-2:] == ("temperature", "adaptive_p")
    assert params["dry_multiplier"] == 0
    assert props["default_generation_settings"]["id"] == 0 and not props["is_sleeping"]
    assert props["modalities"].keys() >= {"vision", "audio"}
    json.dumps(props)
    assert slots_of(model, busy=1, slots=2) == [
        {"id": 0, "n_ctx": model.max_context, "is_processing": True},
        {"id": 1, "n_ctx": model.max_context, "is_processing": False},
    ]
    assert slots_of(None, busy=0, slots=1) == [{"id": 0, "n_ctx": None, "is_processing": False}]


def test_greedy_is_what_the_library_does_by_itself() -> None:
    assert Options.of(GREEDY) == Options.of({})
