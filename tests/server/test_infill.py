"""Filling in the middle: ``suffix`` of completions, and llama.cpp's ``POST /infill``."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from mlxgen.engine import Progress
from mlxgen.server.ask import Ask
from mlxgen.server.chat import parse_chat
from mlxgen.server.completions import parse_completion
from mlxgen.server.engine.mailbox import Delivery
from mlxgen.server.llama import parse_infill, parse_llama
from mlxgen.server.served_model import ServedModel
from mlxgen.tokens import Infill
from tests.fakes import byte_level_tokenizer

from .kit import HELLO, chunks_of, demo, refused, served, usage, whole_of

MARKS = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>"]
PROGRESS = Progress(usage(), 3)
GAP: dict[str, Any] = {"input_prefix": "def f(", "input_suffix": "):\n"}


@cache
def coder() -> ServedModel:
    """A model that can fill in a gap."""
    tokenizer = byte_level_tokenizer()
    tokenizer._tokenizer.add_special_tokens({"additional_special_tokens": MARKS})
    return served(tokenizer)


def infill() -> Infill:
    return Infill.of(coder().vocabulary)


def prompts(call: Ask) -> list[list[int]]:
    return [list(job.prompt.tokens) for job in call.jobs]


def test_a_suffix_makes_a_prompt_with_a_gap_whose_marks_end_the_text() -> None:
    body = {"prompt": "def f(", "suffix": "):\n", "stop_token_ids": [5]}
    for parse in (parse_completion, parse_llama):
        call = parse(body, coder())
        (job,) = call.jobs
        assert prompts(call) == [infill().prompt("def f(", "):\n")]
        assert job.options.stop_tokens == ((5,), *((token,) for token in infill().ends))
        assert not job.prompt.opens_text
    many = parse_completion({**body, "prompt": ["a", "b"], "n": 2}, coder())
    assert prompts(many) == [infill().prompt(text, "):\n") for text in "aabb"]
    ids = coder().vocabulary.continue_with(b"def f(")
    assert prompts(parse_completion({**body, "prompt": ids}, coder())) == prompts(call)


def test_an_empty_suffix_is_none() -> None:
    for model in (coder(), demo()):
        plain = parse_completion({"prompt": "Hello"}, model)
        assert prompts(parse_completion({"prompt": "Hello", "suffix": ""}, model)) == prompts(plain)


@pytest.mark.parametrize(
    ("parse", "body", "param"),
    [
        (parse_completion, {"prompt": "a", "suffix": "b"}, "suffix"),
        (parse_llama, {"prompt": "a", "suffix": "b"}, "suffix"),
        (parse_infill, GAP, "input_suffix"),
        (parse_infill, {**GAP, "input_suffix": ""}, "input_suffix"),
    ],
)
def test_a_model_without_marks_says_so(parse: Any, body: dict[str, Any], param: str) -> None:
    error = refused(parse, body, demo())
    assert (error.param, error.code, error.status) == (param, "unsupported_parameter", 400)
    assert "no marks" in error.message


@pytest.mark.parametrize(
    ("parse", "body", "param"),
    [
        (parse_completion, {"prompt": "a", "suffix": "b", "echo": True}, "echo"),
        (parse_completion, {"prompt": "a", "suffix": "b", "truncate_prompt_tokens": 3}, "trunc"),
        (parse_completion, {"prompt": "a", "suffix": 5}, "suffix"),
        (parse_chat, {"messages": HELLO, "suffix": "b"}, "suffix"),
        (parse_infill, {"input_prefix": "a"}, "input_suffix"),
        (parse_infill, {"input_suffix": "a"}, "input_prefix"),
        (parse_infill, {**GAP, "prompt": [1]}, "prompt"),
        (parse_infill, {**GAP, "input_extra": ["a.py"]}, "input_extra"),
        (parse_infill, {**GAP, "input_extra": [{"filename": "a.py"}]}, "input_extra[0].text"),
        (parse_infill, {**GAP, "echo": True}, "echo"),
    ],
)
def test_what_is_wrong_is_named(parse: Any, body: dict[str, Any], param: str) -> None:
    assert refused(parse, body, coder()).param.startswith(param)


def test_llama_cpps_fields_make_the_same_prompt() -> None:
    extra = [{"filename": "a.py", "text": "x = 1", "time": 5}, {"text": "y"}]
    call = parse_infill({**GAP, "input_extra": extra}, coder())
    files = [("a.py", "x = 1"), ("other", "y")]
    assert prompts(call) == [infill().prompt("def f(", "):\n", files)]
    assert call.watched
    (job,) = call.jobs
    assert job.options.max_tokens is None
    before = {**GAP, "input_prefix": "def ", "prompt": "f("}
    assert prompts(parse_infill(before, coder())) == prompts(parse_infill(GAP, coder()))
    empty = {"input_prefix": "", "input_suffix": ""}
    assert prompts(parse_infill({**empty, "prompt": None}, coder())) == [infill().prompt("", "")]


def test_what_an_editor_sends_is_taken() -> None:
    editor = {
        **GAP,
        "id_slot": 0,
        "input_extra": [],
        "prompt": "",
        "n_predict": 128,
        "stop": [],
        "n_indent": 4,
        "top_k": 40,
        "top_p": 0.9,
        "stream": False,
        "samplers": ["top_k", "top_p", "infill"],
        "cache_prompt": True,
        "t_max_prompt_ms": 500,
        "t_max_predict_ms": 1000,
        "response_fields": ["content", "timings/prompt_n", "truncated", "nothing", "content/x"],
    }
    call = parse_infill(editor, coder())
    reply = call.reply(id="x", created=0)
    vocabulary = coder().vocabulary
    chunks = chunks_of(vocabulary.continue_with(b"pass"), vocabulary, opens_text=False)
    events = [
        event for chunk in chunks for event in reply.take(Delivery(0, [chunk], None, PROGRESS))
    ]
    assert whole_of(reply, events) == {
        "content": "pass",
        "timings/prompt_n": 3,
        "truncated": False,
    }
    warming = parse_infill({**editor, "n_predict": 0, "response_fields": [""]}, coder())
    reply = warming.reply(id="x", created=0)
    events = [
        event for chunk in chunks for event in reply.take(Delivery(0, [chunk], None, PROGRESS))
    ]
    assert whole_of(reply, events) == {}
