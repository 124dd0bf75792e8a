"""Arguments of a call are passed on while the model writes them, in each format."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.chat.calls.reader import ToolReader
from mlxgen.chat.calls.shapes import SHAPES
from mlxgen.chat.splitter import Reading, Span, Splitter

from ..effort import tries
from .kit import SIZES, STYLES, format_of, pieces_of, plain, tool

TOOLS = [
    tool("get", city={"type": "string"}),
    tool(
        "get_weather",
        city={"type": "string"},
        days={"type": "integer"},
        units={"enum": ["C", "F"]},
        where={"type": "object"},
        note={"type": ["string", "null"]},
    ),
]
PARSED = {
    "city": 'Oslo\n"by" the\\fjord é😊',
    "days": 3,
    "units": "C",
    "where": {"a": [1, {"b": "}"}]},
    "note": None,
}


class Form(NamedTuple):
    """How calls are written: each by ``call``, with ``around`` them all and ``between`` them, None
    where each of them has marks of its own."""

    style: str
    call: Callable[[str, dict[str, Any]], str]
    around: tuple[str, str]
    between: str | None = None

    def written(self, arguments: dict[str, Any], name: str = "get_weather") -> str:
        """A call as the models are taught it."""
        return self.around[0] + self.call(name, arguments) + self.around[1]


def tagged(head: str, argument: str, tail: str) -> Callable[[str, dict[str, Any]], str]:
    def call(name: str, arguments: dict[str, Any]) -> str:
        texts = (
            argument.format(
                key=key,
                value=value if isinstance(value, str) else json.dumps(value),
                kind="string" if isinstance(value, str) else "other",
            )
            for key, value in arguments.items()
        )
        return head.format(name) + "".join(texts) + tail

    return call


def objects(before: str, between: str, after: str) -> Callable[[str, dict[str, Any]], str]:
    return lambda name, arguments: f"{before}{name}{between}{json.dumps(arguments)}{after}"


def gemma(quote: str) -> Callable[[str, dict[str, Any]], str]:
    def literal(value: Any) -> str:
        if isinstance(value, dict):
            return "{" + ",".join(f"{k}:{literal(v)}" for k, v in value.items()) + "}"
        if isinstance(value, list):
            return f"[{','.join(map(literal, value))}]"
        return f"{quote}{value}{quote}" if isinstance(value, str) else json.dumps(value)

    return lambda name, arguments: f"call:{name}{literal(arguments)}"


def python(name: str, arguments: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


GLM = tagged("{}\n", "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n", "")
LONGCAT = (
    "<longcat_arg_key>{key}</longcat_arg_key>\n<longcat_arg_value>{value}</longcat_arg_value>\n"
)
XTML = '<|open|>argument key="{key}" type="{kind}"<|sep|>{value}<|close|>argument<|sep|>'
FORMS = {
    "json_tools": Form(
        "json_tools",
        objects('{"name": "', '", "arguments": ', "}"),
        ("<tool_call>\n", "\n</tool_call>"),
    ),
    "kimi_k2": Form(
        "kimi_k2",
        objects(
            "<|tool_call_begin|>functions.",
            ":7<|tool_call_argument_begin|>",
            "<|tool_call_end|>",
        ),
        ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        "",
    ),
    "kimi_k3": Form(
        "kimi_k3",
        tagged('<|open|>call tool="{}" index="1"<|sep|>', XTML, "<|close|>call<|sep|>"),
        ("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),
        "",
    ),
    "kimi_k3 as JSON": Form(
        "kimi_k3",
        objects(
            '<|open|>call tool="',
            '" index="1"<|sep|><|open|>json type="object"<|sep|>',
            "<|close|>json<|sep|><|close|>call<|sep|>",
        ),
        ("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),
        "",
    ),
    "mistral": Form("mistral", objects("", "[ARGS]", ""), ("[TOOL_CALLS]", ""), ""),
    "mistral as a list": Form(
        "mistral",
        objects('{"name": "', '", "arguments": ', ', "id": "a1B2c3D4e"}'),
        ("[TOOL_CALLS] [", "]"),
        ", ",
    ),
    "qwen3_coder": Form(
        "qwen3_coder",
        tagged("<function={}>\n", "<parameter={key}>\n{value}\n</parameter>\n", "</function>"),
        ("<tool_call>\n", "\n</tool_call>"),
    ),
    "glm47": Form("glm47", GLM, ("<tool_call>", "</tool_call>")),
    "laguna": Form("laguna", GLM, ("<tool_call>", "</tool_call>")),
    "longcat": Form(
        "longcat", tagged("{}\n", LONGCAT, ""), ("<longcat_tool_call>", "</longcat_tool_call>")
    ),
    "minimax_m2": Form(
        "minimax_m2",
        tagged(
            '<invoke name="{}">\n', '<parameter name="{key}">{value}</parameter>\n', "</invoke>"
        ),
        ("<minimax:tool_call>\n", "\n</minimax:tool_call>"),
        "\n",
    ),
    "minicpm5": Form(
        "minicpm5",
        tagged('"{}">', '<param name="{key}">{value}</param>', ""),
        ("<function name=", "</function>"),
    ),
    "minicpm5 with CDATA": Form(
        "minicpm5",
        tagged('"{}">', '<param name="{key}"><![CDATA[{value}]]></param>', ""),
        ("<function name=", "</function>"),
    ),
    "muse_spark": Form(
        "muse_spark",
        tagged(
            '<atem:invoke name="{}">\n',
            '<atem:parameter name="{key}">{value}</atem:parameter>\n',
            "</atem:invoke>",
        ),
        ("<atem:function_calls>\n", "\n</atem:function_calls>"),
        "\n",
    ),
    "function_gemma": Form(
        "function_gemma", gemma("<escape>"), ("<start_function_call>", "<end_function_call>"), ""
    ),
    "gemma4": Form("gemma4", gemma('<|"|>'), ("<|tool_call>", "<tool_call|>"), ""),
    "pythonic": Form("pythonic", python, ("<|tool_call_start|>[", "]<|tool_call_end|>"), ", "),
}
every_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


def reader_of(style: str) -> ToolReader:
    return ToolReader(format_of(style, plain().vocabulary), TOOLS)


def spans_of(style: str, pieces: list[str], *, cut: bool = False) -> list[list[Span]]:
    """The spans that each piece gives, and those of the end."""
    splitter = Splitter(Reading(tools=reader_of(style)))
    return [*(splitter.push(piece) for piece in pieces), splitter.flush(cut=cut)]


def calls_of(spans: list[list[Span]]) -> list[tuple[str, str]]:
    """Names and arguments; everything else in these texts belongs to marks."""
    calls: list[tuple[str, str]] = []
    for span in (span for some in spans for span in some):
        assert span.kind in ("call", "mark"), span
        calls.extend((call.name, call.arguments) for call in span.calls)
        if span.more:
            calls[-1] = (calls[-1][0], calls[-1][1] + span.more)
    return calls


def test_every_parser_of_mlx_lm_has_a_shape_and_a_sample() -> None:
    assert set(STYLES) == {form.style for form in FORMS.values()} <= set(SHAPES)


@every_form
def test_arguments_are_what_the_parser_reads_of_the_whole(form: Form) -> None:
    sample = dict(PARSED)
    if form.style == "function_gemma":  # whose parser knows nothing of objects
        del sample["where"]
    reader, text = reader_of(form.style), form.written(sample)
    ((name, arguments),) = calls_of(spans_of(form.style, [text]))
    (call,) = reader.read(text.removeprefix(reader.format.start).removesuffix(reader.format.end))
    assert name == call.name == "get_weather"
    assert json.loads(arguments) == json.loads(call.arguments) == sample


@every_form
def test_a_call_that_is_cut_off_anywhere_is_a_call_with_what_there_is(form: Form) -> None:
    """At every character, in pieces of every small size, and never less than before."""
    text, start = form.written(PARSED), len(reader_of(form.style).format.start)
    ((_, whole),) = calls_of(spans_of(form.style, [text]))
    assert json.loads(whole) == PARSED
    cuts = [
        calls_of(spans_of(form.style, [text[:end]], cut=True)) for end in range(start, len(text))
    ]
    before = ""
    for calls in cuts[cuts.index([("get_weather", "")]) :]:
        ((name, arguments),) = calls
        assert name == "get_weather" and whole.startswith(arguments)
        assert arguments.startswith(before)
        before = arguments
    assert len(before) > len(whole) - 12  # all but an end that is not there yet
    for size in (1, 2, 3, 5, 7):
        splitter, spans = Splitter(Reading(tools=reader_of(form.style))), []
        for at in range(0, len(text), size):
            spans.append(splitter.push(text[at : at + size]))
            if start <= at + size < len(text):
                ended = deepcopy(splitter).flush(cut=True)
                assert calls_of([*spans, ended]) == cuts[at + size - start]
        assert calls_of([*spans, splitter.flush()]) == [("get_weather", whole)]


@every_form
def test_arguments_grow_with_the_text(form: Form) -> None:
    long = " ".join(["word"] * 50)
    spans = spans_of(form.style, list(form.written({"city": long})))
    grown = [sum(len(span.more) for span in some) for some in spans]
    assert max(grown) <= 16  # one character sets the name of an argument free
    assert sum(grown) == len(json.dumps({"city": long}))


@every_form
def test_calls_without_arguments_are_empty_objects(form: Form) -> None:
    text = form.written({})
    for pieces in ([text], list(text)):
        assert calls_of(spans_of(form.style, pieces)) == [("get_weather", "{}")]


@every_form
def test_a_call_without_the_mark_of_its_end_is_whole(form: Form) -> None:
    text = form.written(PARSED).removesuffix(reader_of(form.style).format.end)
    for pieces in ([text], list(text)):
        ((_, arguments),) = calls_of(spans_of(form.style, pieces))
        assert json.loads(arguments) == PARSED


@pytest.mark.parametrize(
    "form",
    [form for form in FORMS.values() if form.between is not None],
    ids=lambda form: form.style,
)
def test_several_calls_between_one_pair_of_marks(form: Form) -> None:
    calls = [("get_weather", {"city": "Oslo"}), ("get", {"city": "Rome"}), ("get", {})]
    inner = (form.between or "").join(form.call(name, arguments) for name, arguments in calls)
    text = form.around[0] + inner + form.around[1]
    for pieces in ([text], list(text)):
        read = calls_of(spans_of(form.style, pieces))
        assert [(name, json.loads(arguments)) for name, arguments in read] == calls


def test_the_id_of_a_call_is_the_models_own() -> None:
    spans = spans_of("kimi_k2", [FORMS["kimi_k2"].written({"city": "Oslo"})])
    (call,) = [call for some in spans for span in some for call in span.calls]
    assert call.id == "functions.get_weather:7"


@pytest.mark.parametrize("style", ["qwen3_coder", "minimax_m2", "minicpm5"])
def test_a_text_that_is_the_word_null_is_what_the_parser_takes_it_for(style: str) -> None:
    for word, value in (("null", None), ("nullable", "nullable"), ("nul", "nul")):
        ((_, arguments),) = calls_of(spans_of(style, list(FORMS[style].written({"city": word}))))
        assert json.loads(arguments) == {"city": value}


@given(st.text(max_size=40), SIZES)
@settings(max_examples=tries(100))
def test_any_text_of_an_argument_comes_through(text: str, sizes: list[int]) -> None:
    for style in ("json_tools", "kimi_k2", "kimi_k3 as JSON", "mistral", "pythonic"):
        pieces = pieces_of(FORMS[style].written({"city": text}), sizes)
        ((_, arguments),) = calls_of(spans_of(FORMS[style].style, pieces))
        assert json.loads(arguments) == {"city": text}


def test_arguments_that_are_not_json_end_with_the_call() -> None:
    text = '<tool_call>{"name": "get", "arguments": {"city": [1}</tool_call>Well.'
    spans = [span for some in spans_of("json_tools", list(text)) for span in some]
    assert "".join(span.more for span in spans) == '{"city": [1}'
    assert "".join(span.text for span in spans if span.kind == "content") == "Well."


@pytest.mark.parametrize(
    ("style", "written", "value"),
    [
        ("pythonic", r"'it\'s \x41\u00e9\101\N{BULLET} \d'", "it's AéA• \\d"),
        ("pythonic", '"""two\n"lines" """', 'two\n"lines" '),
        ("pythonic", "'one' \"two\"", "onetwo"),
        ("pythonic", "''", ""),
        (
            "pythonic",
            "[True, null, (1, -2.5), {'a': {}, \"b\": []}]",
            [True, None, [1, -2.5], {"a": {}, "b": []}],
        ),
        ("pythonic", "New York", "New York"),
        ("pythonic", r"'\ud83d\ude00'", "😀"),
        ("gemma4", '<|"|>a\\n}"<|"|>', 'a\\n}"'),
        ("gemma4", '{a:{b:[],c:<|"|><|"|>}, d:true}', {"a": {"b": [], "c": ""}, "d": True}),
        ("function_gemma", "<escape>}, {<escape>", "}, {"),
        ("function_gemma", "12:30", "12:30"),
    ],
)
def test_literals_are_what_they_mean(style: str, written: str, value: Any) -> None:
    quoted = {"pythonic": "'HERE'", "gemma4": '<|"|>HERE<|"|>'}.get(style, "<escape>HERE<escape>")
    text = FORMS[style].written({"city": "HERE", "units": "C"}).replace(quoted, written)
    for pieces in ([text], list(text)):
        ((_, arguments),) = calls_of(spans_of(style, pieces))
        assert json.loads(arguments) == {"city": value, "units": "C"}


def test_what_only_looks_like_the_end_of_a_value_does_not_end_it() -> None:
    text = "if a</param> b]] > c"
    ((_, arguments),) = calls_of(
        spans_of("minicpm5", list(FORMS["minicpm5 with CDATA"].written({"city": text})))
    )
    assert json.loads(arguments) == {"city": text}


def test_literals_that_no_bracket_closes_end_with_the_call() -> None:
    text = "<|tool_call_start|>[get(city=['a', {'b': 'c'<|tool_call_end|>Well."
    spans = [span for some in spans_of("pythonic", list(text)) for span in some]
    assert "".join(span.more for span in spans) == '{"city": ["a", {"b": "c"}]}'
    assert "".join(span.text for span in spans if span.kind == "content") == "Well."


@pytest.mark.parametrize("written", ['{\\"city\\": ', "[1"])
def test_a_call_that_is_cut_off_while_its_arguments_cannot_grow_is_a_call(written: str) -> None:
    text = f'<tool_call>{{"name": "get", "arguments": "{written}'
    assert calls_of(spans_of("json_tools", list(text), cut=True)) == [("get", "")]
