"""The formats of tool calls that mlx-lm's parsers lack, as their makers publish them.

A model's format is told by its chat template and its tokens. Calls that cannot be read while they
grow are read as a whole by ``json_calls`` or ``tagged_calls``.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from importlib import import_module
from typing import Any, NamedTuple

import regex

from .arguments import Parse

Calls = list[dict[str, Any]]


class Known(NamedTuple):
    """A format, and how it is told.

    - ``style``: how its calls are read and enforced: a key of ``SHAPES``.
    - ``start`` and ``end``: the marks around calls; "": there is none, or a header says it.
    - ``template`` and ``tokens``: texts that must all be in the chat template, and tokens that the
      vocabulary must have.
    - ``also``: other marks with which calls begin, if they are followed by one.
    - ``lines``: beginnings of a line of the answer that begin a call without any mark, likewise.
    - ``keys``, ``is_list``, ``opening``: what a call's object calls its two parts, whether calls
      are in a list, and the text before them, after the mark.
    """

    style: str
    start: str
    end: str
    template: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    keys: tuple[str, str] = ("name", "arguments")
    is_list: bool = False
    opening: str = ""


_PARAMETERS = ("name", "parameters")
_TOOLS = ("tool_name", "parameters")
_LINES = ("{", "[")

_KNOWN = (
    Known(  # gpt-oss
        "harmony",
        "",
        "",
        tokens=("<|channel|>", "<|message|>", "<|call|>"),
    ),
    Known(  # DeepSeek V3.2 and later
        "dsml",
        "<｜DSML｜function_calls>",
        "</｜DSML｜function_calls>",
        tokens=("｜DSML｜",),
    ),
    Known(  # DeepSeek V3 and R1, and what was distilled from it
        "deepseek_v3",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        template=("<｜tool▁calls▁begin｜>", "```json"),
    ),
    Known(
        "deepseek_v31",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        template=("<｜tool▁calls▁begin｜>",),
    ),
    Known(  # Command R7B, Command A
        "json_tools",
        "<|START_ACTION|>",
        "<|END_ACTION|>",
        template=("<|START_ACTION|>",),
        keys=_TOOLS,
        is_list=True,
    ),
    Known(  # Command R, Command R+
        "json_tools",
        "",
        "```",
        template=("Action:", "```json", '"tool_name"'),
        also=("Action:",),
        keys=_TOOLS,
        is_list=True,
        opening="Action: ```json\n",
    ),
    Known(
        "apertus",
        "<|tools_prefix|>",
        "<|tools_suffix|>",
        template=("<|tools_prefix|>",),
    ),
    Known(
        "seed",
        "<seed:tool_call>",
        "</seed:tool_call>",
        template=("<seed:tool_call>",),
    ),
    Known(  # Hermes, and the many that write as it does
        "json_tools", "<tool_call>", "</tool_call>", template=("<tool_call>",)
    ),
    Known(  # Phi-4-mini, which has two ways
        "json_tools",
        "<|tool_call|>",
        "<|/tool_call|>",
        tokens=("<|tool_call|>", "<|/tool_call|>"),
        also=("functools",),
        is_list=True,
    ),
    Known(  # Granite 3
        "json_tools", "<|tool_call|>", "", template=("<|tool_call|>",), is_list=True
    ),
    Known(  # Granite's 20B for function calling
        "json_tools", "<function_call>", "", template=("<function_call>",)
    ),
    Known(  # Nemotron
        "json_tools", "<TOOLCALL>", "</TOOLCALL>", template=("<TOOLCALL>",), is_list=True
    ),
    Known(  # Jamba, Hunyuan, MiniMax M1
        "json_tools", "<tool_calls>", "</tool_calls>", template=("<tool_calls>",), is_list=True
    ),
    Known(  # InternLM
        "json_tools",
        "<|action_start|><|plugin|>",
        "<|action_end|>",
        tokens=("<|action_start|>", "<|plugin|>", "<|action_end|>"),
        keys=_PARAMETERS,
    ),
    Known(  # OLMo 3
        "pythonic_lines",
        "<function_calls>",
        "</function_calls>",
        template=("<function_calls>",),
    ),
    Known(  # Llama 3.2 and 4, where they are asked for Python
        "llama_pythonic",
        "",
        "",
        template=("func_name1(",),
        also=("<|python_start|>", "<|python_tag|>"),
        lines=_LINES,
    ),
    Known(  # Llama 3.1 and later
        "llama_json",
        "",
        "",
        template=('"parameters": dictionary of argument name and its value',),
        also=("<|python_start|>", "<|python_tag|>"),
        lines=_LINES,
        keys=_PARAMETERS,
    ),
)


def known_format(template: str, tokens: Collection[str]) -> Known | None:
    """The format of a model, from its chat templates and its added tokens."""
    for known in _KNOWN:
        if all(text in template for text in known.template) and all(
            token in tokens for token in known.tokens
        ):
            return known
    return None


# ---- calls that are read as a whole --------------------------------------------------------------

_BETWEEN = regex.compile(r"(?:```(?:json)?|[\s,;])*")
_NEXT_LINE = regex.compile(r"\)\s*\n\s*(?=\w)")
_INVOKE = regex.compile(r'<｜DSML｜invoke name="([^"]+)">(.*?)</｜DSML｜invoke>', regex.DOTALL)
_PARAMETER = regex.compile(
    r'<｜DSML｜parameter name="([^"]+)"(?: string="(true|false)")?>(.*?)</｜DSML｜parameter>',
    regex.DOTALL,
)


def json_calls(text: str, tools: Any = None) -> Calls:
    """Calls that are JSON objects: one, several in a row, or lists of them."""
    decoder, calls, at = json.JSONDecoder(), [], _gap(text, 0)
    while at < len(text):
        value, at = decoder.raw_decode(text, at)
        calls += value if isinstance(value, list) else [value]
        at = _gap(text, at)
    return [_called(call) for call in calls]


def _gap(text: str, at: int) -> int:
    """Where what is between two calls ends."""
    gap = _BETWEEN.match(text, at)
    assert gap is not None
    return gap.end()


def _called(call: dict[str, Any]) -> dict[str, Any]:
    inner = call.get("function")
    call = inner if isinstance(inner, dict) else call
    name = call["name"] if "name" in call else call["tool_name"]
    return {"name": name, "arguments": call.get("arguments", call.get("parameters"))}


def tagged_calls(text: str, tools: Any = None) -> Calls:
    """Calls in DeepSeek's tags, which say of each argument whether it is text."""
    return [
        {
            "name": name,
            "arguments": {
                key: json.loads(value) if is_text == "false" else value
                for key, is_text, value in _PARAMETER.findall(body)
            },
        }
        for name, body in _INVOKE.findall(text)
    ]


def python_calls(text: str, tools: Any = None) -> Calls:
    """Calls in Python, in a list or on lines of their own."""
    inner = text.strip()
    if not inner.startswith("["):
        inner = f"[{regex.sub(_NEXT_LINE, '), ', inner)}]"
    calls = _of_mlx_lm("pythonic")(inner, tools)
    return calls if isinstance(calls, list) else [calls]


def parser_of(style: str) -> Parse:
    """What reads whole calls of one of the formats above."""
    if style in ("json_tools", "apertus", "harmony") or style.startswith("deepseek"):
        return json_calls
    if style == "dsml":
        return tagged_calls
    return _of_mlx_lm("qwen3_coder") if style == "seed" else python_calls


def _of_mlx_lm(name: str) -> Parse:
    parse: Parse = import_module(f"mlx_lm.tool_parsers.{name}").parse_tool_call
    return parse
