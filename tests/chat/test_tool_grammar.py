"""Calls that a grammar allows are calls that the format's reader reads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import jsonschema
import pytest
from tokenizers import AddedToken

from mlxgen.chat.calls.formats import FORMATS, CallFormat
from mlxgen.chat.calls.grammar import CallsGrammar, calls_grammar
from mlxgen.chat.calls.reader import ToolReader
from mlxgen.filters import Constraint
from mlxgen.tokens import Vocabulary
from tests.fakes import byte_level_tokenizer

from ..effort import table
from .families import ASKED
from .kit import STYLES, calls_of, plain, takes, walk
from .test_golden import GOLDEN, TOOLS

PLAIN = plain().vocabulary
ENFORCED = [style for style in STYLES if FORMATS[style].enforced]
every_format = pytest.mark.parametrize("style", ENFORCED)
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("get_weather", {"city": "Oslo", "days": 3}),
    ("get_time", {}),
]
OTHERWISE = ("harmony", "internlm", "llama_pythonic")  # have other marks around golden calls
CALL_END = "<|call|>"  # which ends the answer, too
# What ends an argument that is text, and the call after it.
CLOSING = {
    "qwen3_coder": ("\n</parameter>\n", "</function>\n</tool_call>"),
    "seed": ("</parameter>\n", "</function>\n</seed:tool_call>"),
    "glm47": ("</arg_value>\n", "</tool_call>"),
    "laguna": ("</arg_value>\n", "</tool_call>"),
    "minimax_m2": ("</parameter>\n", "</invoke>\n</minimax:tool_call>"),
}
WEATHER = ASKED["weather"]


def function(name: str, parameters: Any, *, strict: bool = False) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": name, "parameters": parameters, "strict": strict},
    }


@cache
def marked(style: str) -> Vocabulary:
    """A vocabulary in which the marks of a format are tokens."""
    tokenizer = byte_level_tokenizer()._tokenizer
    format = FORMATS[style]
    body = format.body
    pieces = [*body.open, *body.close, *body.key, *body.after, *format.thought]
    marks = [piece for piece in pieces if re.fullmatch(r"<\S+>|\[[A-Z_]+\]", piece)]
    marks += re.findall(r"<[^<>]+>|\[[A-Z_]+\]", f"{format.start} {format.end}")
    tokenizer.backend_tokenizer.add_special_tokens(
        [AddedToken(mark, normalized=False) for mark in dict.fromkeys(marks)]
    )
    return Vocabulary.of(tokenizer)


def grammar_of(
    format: CallFormat,
    tools: Sequence[Any],
    *,
    many: bool,
    begun: bool = False,
    vocabulary: Vocabulary = PLAIN,
) -> CallsGrammar:
    functions = [tool["function"] for tool in tools]
    return calls_grammar(
        format,
        tools,
        vocabulary,
        names=[function["name"] for function in functions],
        strict=[function["name"] for function in functions if function.get("strict")],
        many=many,
        begun=begun,
    )


@every_format
def test_what_a_model_writes_is_allowed_and_read(style: str) -> None:
    format, vocabulary = FORMATS[style], marked(style)
    many = grammar_of(format, TOOLS, many=True, vocabulary=vocabulary).spec
    rest = grammar_of(format, TOOLS, many=True, begun=True, vocabulary=vocabulary).spec
    texts = [format.write([call]) for call in CALLS]
    published = [
        case["text"].strip()
        for case in GOLDEN
        if case["style"] == style and "slip" not in case and not case["reasoning"]
        if case["calls"] == [list(CALLS[0])]
    ]
    allowed = [text for text in published if takes(many, vocabulary, text.removesuffix(CALL_END))]
    assert allowed or not published or style in OTHERWISE
    for text in texts + allowed:
        text = text.removesuffix(CALL_END)
        assert takes(many, vocabulary, text), text
        assert takes(rest, vocabulary, text.removeprefix(format.start))
        for wrong in (f"Well, {text}", text.replace("get_", "got_"), text.replace("days", "daze")):
            assert wrong == text or not takes(many, vocabulary, wrong), wrong
        assert "3" not in text or not takes(many, vocabulary, text.replace("3", "three"))
    assert not takes(many, vocabulary, "")
    both, one = (
        format.write(CALLS),
        grammar_of(format, TOOLS, many=False, vocabulary=vocabulary).spec,
    )
    assert takes(one, vocabulary, texts[0].removesuffix(CALL_END))
    assert not takes(one, vocabulary, both)
    if format.paired or (format.body.between is not None and not format.thought):
        assert takes(many, vocabulary, both), both
    assert calls_of(ToolReader(format, TOOLS), both) == CALLS


@every_format
def test_whatever_a_grammar_allows_is_read(style: str) -> None:
    tools = [function("get_weather", WEATHER), function("no-op", {})]
    format, reader = FORMATS[style], ToolReader(FORMATS[style], tools)
    for vocabulary in (PLAIN, marked(style)):
        spec = grammar_of(format, tools, many=False, vocabulary=vocabulary).spec
        for seed in range(4):
            constraint = Constraint([spec], vocabulary, vocabulary.size)
            closing = CLOSING.get(style, ("",))[0]
            text = vocabulary.decode(walk(constraint, vocabulary, seed, closing))
            ((name, arguments),) = calls_of(reader, text)
            schema = WEATHER if name == "get_weather" else {"maxProperties": 0}
            jsonschema.validate(arguments, schema)


@pytest.mark.parametrize("strict", [False, True])
def test_arguments_have_no_keys_that_nobody_asked_for(strict: bool) -> None:
    format = FORMATS["json_tools"]

    for case in table("arguments"):
        tools = [function("f", case["parameters"], strict=strict)]
        spec = grammar_of(format, tools, many=False).spec
        for arguments in case["good"] + case["bad"]:
            text = f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'
            assert takes(spec, PLAIN, text) == (arguments in case["good"]), (case, arguments)


def test_of_a_schema_that_cannot_be_held_the_outline_is() -> None:
    deep: dict[str, Any] = {}
    for _ in range(2000):
        deep = {"properties": {"x": deep}}
    form = {"properties": {"a": {"type": "string", "pattern": "x+"}}}
    tagged, named = FORMATS["qwen3_coder"], FORMATS["json_tools"]
    for format, schema, loose in ((named, deep, True), (tagged, form, True), (named, form, False)):
        found = grammar_of(format, [function("f", schema, strict=True)], many=False)
        assert found.loose == ({"f"} if loose else set()) and not found.checked
        assert takes(found.spec, PLAIN, format.write([("f", {})]))
        assert not takes(found.spec, PLAIN, format.write([("f", {"b": "x"})]))
    few = [function("f", {"properties": {"a": {}}, "minProperties": 1}, strict=True)]
    assert grammar_of(tagged, few, many=False).checked == {"f"}


@pytest.mark.parametrize("style", CLOSING)
def test_texts_between_tags_may_be_anything_but_the_tag_and_objects_have_no_other_keys(
    style: str,
) -> None:
    spec = grammar_of(FORMATS[style], [function("get_weather", WEATHER)], many=True).spec
    end, close = CLOSING[style]

    def allows(city: str, **more: Any) -> bool:
        text = FORMATS[style].write([("get_weather", {"city": city, "unit": "c", **more})])
        return takes(spec, PLAIN, text)

    assert allows(f'New\n"York" {end[:-3]} <x>') and allows("")
    assert not allows("x", unit="k") and not allows(f"{end}{close}")
    assert allows("x", box={"x": 1}) and not allows("x", box={"y": 1})
