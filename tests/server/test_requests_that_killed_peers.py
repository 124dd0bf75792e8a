"""The requests that killed another server: each gives an error or a call that is valid."""

from __future__ import annotations

import re
from typing import Any

import pytest

from mlxgen.server.chat import parse_chat
from mlxgen.server.completions import parse_completion

from .kit import HELLO, demo, refused

SIZE = 1024  # of the demo model's vocabulary


@pytest.mark.parametrize("parse", [parse_chat, parse_completion])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stop": 5}, "stop"),
        ({"logit_bias": {str(SIZE): 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"five": 1}}, "logit_bias"),
        ({"logit_bias": {"٣": 1}}, "logit_bias"),
        ({"xtc_threshold": 0.9}, "xtc_threshold"),
        ({"stop_token_ids": [SIZE]}, "stop_token_ids"),
        ({"prefix_tokens": [SIZE]}, "prefix_tokens"),
        ({"stop": ""}, "stop"),
        ({"stop": [""]}, "stop[0]"),
        ({"n": 0}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
        ({"prefix_tokens": [5, 6], "max_tokens": 2}, "prefix_tokens"),
        ({"temperature": -1}, "temperature"),
    ],
)
def test_a_wrong_field_is_refused_by_name(parse: Any, fields: dict[str, Any], param: str) -> None:
    base = {"messages": HELLO} if parse is parse_chat else {"prompt": "Hello"}
    assert refused(parse, {**base, **fields}, demo()).param == param


@pytest.mark.parametrize("parse", [parse_chat, parse_completion])
@pytest.mark.parametrize(
    "fields",
    [
        {"top_k": SIZE},
        {"top_k": 10 * SIZE},
        {"top_k": -1},
        {"top_p": 0},
        {"seed": -1},
        {"seed": 10**30},
        {"seed": -(10**30)},
        {"stream_options": {}},
        {"stream": True, "stream_options": {}},
        {"temperature": None, "top_p": None, "stop": None, "seed": None},
        {"logit_bias": {}},
        {"logit_bias": {"0": -100, "1023": 100}},
        {"stop": []},
    ],
)
def test_what_is_unusual_is_a_call_all_the_same(parse: Any, fields: dict[str, Any]) -> None:
    base = {"messages": HELLO} if parse is parse_chat else {"prompt": "Hello"}
    call = parse({**base, **fields}, demo())
    assert len(call.jobs) == 1


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ("", "prompt"),
        ([], "prompt"),
        ([""], "prompt[0]"),
        ([[]], "prompt[0]"),
        ([[1], []], "prompt[1]"),
        (["a", 1.5], "prompt[1]"),
        ([1, ""], "prompt[1]"),
        ([[1], ""], "prompt[1]"),
        ([[1], ["a", None]], "prompt[1][1]"),
        (["a", SIZE], "prompt"),
        ([True], "prompt[0]"),
        ([1, True], "prompt[1]"),
        ([1.5], "prompt[0]"),
        ([SIZE], "prompt"),
        ([-1], "prompt"),
        ([[1], [SIZE]], "prompt[1]"),
        ([None], "prompt[0]"),
        ({"a": 1}, "prompt"),
        (5, "prompt"),
        ([1] * 5000, "prompt"),
        (["a"] * 1000, "prompt"),
        ([[[1]]], "prompt[0][0]"),
    ],
)
def test_a_prompt_that_is_none_is_refused_with_its_place(prompt: Any, param: str) -> None:
    assert refused(parse_completion, {"prompt": prompt}, demo()).param == param


@pytest.mark.parametrize("fields", [{}, {"prefix_tokens": [5] * 2000}])
def test_clients_recognise_the_words_for_a_prompt_that_is_too_long(fields: Any) -> None:
    # litellm, langchain, Roo, and those that read the numbers out of vLLM's or OpenAI's message
    prompt = "a " * (100 if fields else 3000)
    error = refused(parse_completion, {"prompt": prompt, "max_tokens": 2048, **fields}, demo())
    said = error.message.lower()
    assert error.code == "context_length_exceeded"
    assert "prompt is too long" in said
    assert "this model's maximum context length is 2048 tokens. however, your" in said
    assert re.search(r"resulted in (\d+) tokens", said)
