"""How a tool call begins in each format, so that it can be read while it grows.

A head is what stands between the mark of a call and its arguments. Invariant: a head that was
recognised names a tool that may be called, and nothing that follows changes that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import regex

from .arguments import ArgumentFormat, JsonArguments
from .literals import LiteralArguments
from .tags import Tags


class Head(NamedTuple):
    """The head with which a text begins, as far as it is certain.

    ``name`` is the tool's. ``begins``: the arguments begin at ``end``, written as ``arguments``
    says. ``id`` is the call's, if the model gave one. ``is_open``: the text so far may be the
    beginning of a head.
    """

    name: str | None = None
    begins: bool = False
    end: int = 0
    id: str | None = None
    arguments: ArgumentFormat | None = None
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class CallShape:
    """A format of calls, as patterns.

    ``name`` reaches to where the name is certain (a group ``name``; there may be an ``id``), and
    ``begins`` from there to the arguments: those of ``json`` if it matched a group ``json``, else
    ``arguments``. ``first`` comes between a mark and the name of the first call, ``again`` between
    the arguments of a call and the name of the next (None: there is no next), and ``tail`` after
    the arguments of the last.
    """

    name: str
    arguments: ArgumentFormat
    begins: str = ""
    first: str = r"\s*"
    again: str | None = None
    tail: str = ""
    json: ArgumentFormat | None = None


class BoundShape:
    """Recognises the calls of tools with these names; ``end`` is the mark that ends them.

    ``tail`` is what comes after the arguments of the last call, up to and with that mark.
    """

    def __init__(self, shape: CallShape, names: Sequence[str], end: str) -> None:
        self._shape = shape
        self._heads = [
            (
                regex.compile(start + shape.name + shape.begins, names=names),
                regex.compile(start + shape.name, names=names),
            )
            for start in (shape.first, shape.again)
            if start is not None
        ]
        self.tail = regex.compile(rf"{shape.tail}\s*{regex.escape(end)}" if end else shape.tail)

    def head(self, text: str, at: int, *, again: bool) -> Head:
        """The head that begins at ``at``; ``again``: after another call."""
        shape = self._shape
        if again and shape.again is None:
            return Head()
        whole, named = self._heads[again]
        match = whole.match(text, at, partial=True)
        is_other = match is None
        match = match or named.match(text, at, partial=True)
        if match is None:
            return Head()
        groups = match.groupdict()
        return Head(
            name=match["name"] if match.end("name") < len(text) else None,
            begins=not (is_other or match.partial),
            end=match.end(),
            id=groups.get("id"),
            arguments=shape.json if groups.get("json") is not None else shape.arguments,
            is_open=match.partial and not is_other,
        )


# ---- the formats ---------------------------------------------------------------------------------

_SPACE = r"\s*"
_OBJECT = r'\s*(?=\{\s*["}])'  # the beginning of an object, taken for one
_FIRST = r'\s*(?:"(?:type|tool_call_id)"\s*:\s*"[^"]*"\s*,\s*)?(?:"function"\s*:\s*\{\s*)?'
_NAMED = rf'\{{{_FIRST}"(?:tool_)?name"\s*:\s*"(?P<name>\L<names>)"'
_ARGUMENTS = r'\s*,\s*"(?:arguments|parameters)"\s*:' + _OBJECT
_MEMBERS = r'(?:\s*,\s*"\w+"\s*:\s*"[^"]*")*\s*\}(?:\s*\})?'  # what else is in a call's object
_LIST = r"\s*(?:\[\s*)?"  # the beginning of a list, if there is one
_SEP = r"(?s:(?!<\|sep\|>).)*<\|sep\|>"  # the rest of one of Kimi's tags


def _glm(prefix: str) -> CallShape:
    """A name, and keys and values between tags whose names begin with ``prefix``."""
    key, key_end = f"<{prefix}arg_key>", f"</{prefix}arg_key>"
    value, value_end = f"<{prefix}arg_value>", f"</{prefix}arg_value>"
    return CallShape(
        name=r"(?P<name>\L<names>)(?=[\s<])",
        begins=rf"\s*(?={key}|</{prefix}tool_call>)",  # other forms begin with a name, too
        arguments=Tags(
            opening=key,
            tag=rf"{key}[^<]*{key_end}(?:\\n|\s)*{value}",
            end=value_end,
            call="NAMEARGUMENT",
        ),
    )


_FUNCTION = CallShape(
    name=r"<function=(?P<name>\L<names>)>",
    arguments=Tags(
        opening="<parameter=",
        tag=r"<parameter=[^<>]*>",
        end="</parameter>",
        call="<function=NAME>\nARGUMENT\n</function>",
        close="</function>",
        strips=(lambda text: text.removeprefix("\n"), lambda text: text.removesuffix("\n")),
    ),
)
_DEEPSEEK = CallShape(
    name=(
        r"<｜tool▁call▁begin｜>\s*(?:function\s*<｜tool▁sep｜>\s*)?(?P<name>\L<names>)(?=[\s<`{])"
    ),
    begins=r"\s*(?:<｜tool▁sep｜>)?\s*(?:```(?:json)?)?" + _OBJECT,
    arguments=partial(JsonArguments, stops=("<｜tool▁call▁end｜>",)),
    again=r"\s*(?:```)?\s*<｜tool▁call▁end｜>\s*",
    tail=r"\s*(?:```)?\s*<｜tool▁call▁end｜>",
)
_PYTHONIC = CallShape(
    name=r"(?P<name>\L<names>)\s*\(",
    arguments=partial(LiteralArguments, call="[f(x=VALUE)]"),
    first=r"\s*\[\s*",
    again=r"\s*,\s*",
    tail=r"\s*,?\s*\]",
)
_LLAMA = CallShape(  # calls in Python, or JSON objects
    name=rf"(?:(?P<json>(?=\{{)){_NAMED}|(?P<name>\L<names>)\s*\()",
    begins=rf"(?(json){_ARGUMENTS}|)",
    arguments=partial(LiteralArguments, call="[f(x=VALUE)]"),
    json=JsonArguments,
    first=_LIST,
    again=rf"(?:{_MEMBERS})?\s*(?:[,;]\s*)?",
    tail=rf"(?:{_MEMBERS})?\s*,?\s*\]?",
)

SHAPES: Mapping[str, CallShape] = {
    "json_tools": CallShape(
        name=_NAMED,
        begins=_ARGUMENTS,
        arguments=JsonArguments,
        first=rf"\s*(?:```(?:json)?\s*)?{_LIST}",
        again=rf"{_MEMBERS}\s*[,;]?\s*",
        tail=rf"{_MEMBERS}\s*\]?",
    ),
    "apertus": CallShape(
        name=r'\{\s*"(?P<name>\L<names>)"',
        begins=r"\s*:" + _OBJECT,
        arguments=JsonArguments,
        first=_LIST,
        again=r"\s*\}\s*,?\s*",
        tail=r"\s*\}\s*\]?",
    ),
    "harmony": CallShape(  # the rest of a header, and the arguments as its message
        name=r"(?P<name>\L<names>)(?=[\s<])",
        begins=r"(?s:(?!<\|(?:message|start|end|call)\|>).)*<\|message\|>" + _OBJECT,
        arguments=partial(JsonArguments, stops=("<|call|>", "<|end|>")),
        first="",
        tail=_SPACE,
    ),
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v31": _DEEPSEEK,
    "dsml": CallShape(
        name=r'<｜DSML｜invoke name="(?P<name>\L<names>)">',
        arguments=Tags(
            opening="<｜DSML｜parameter",
            tag=r'<｜DSML｜parameter name="[^"]+"[^<>]*>',
            end="</｜DSML｜parameter>",
            call='<｜DSML｜invoke name="NAME">ARGUMENT</｜DSML｜invoke>',
            close="</｜DSML｜invoke>",
            strips=(str, str),
        ),
        again=_SPACE,
    ),
    "llama_json": _LLAMA,
    "llama_pythonic": _LLAMA,
    "mistral": CallShape(  # a name and arguments, or a list of JSON objects in older models
        name=(
            r"(?:(?P<name>\L<names>)\s*(?:\[CALL_ID\](?P<id>[\w-]+)\s*)?(?P<header>\[ARGS\])"
            rf"|{_NAMED})"
        ),
        begins=rf"(?(header){_OBJECT}|{_ARGUMENTS})",
        arguments=JsonArguments,
        first=r"\s*(?:\[\s*(?=\{))?",
        again=rf"(?:{_MEMBERS}\s*,)?\s*",
        tail=rf"{_MEMBERS}\s*\]",
    ),
    "kimi_k2": CallShape(
        name=r"<\|tool_call_begin\|>\s*(?P<id>(?:functions\.)?(?P<name>\L<names>):[0-9]+)",
        begins=r"\s*<\|tool_call_argument_begin\|>" + _OBJECT,
        arguments=partial(JsonArguments, stops=("<|tool_call_end|>",)),
        again=r"\s*<\|tool_call_end\|>\s*",
        tail=r"\s*<\|tool_call_end\|>",
    ),
    "kimi_k3": CallShape(  # each argument between tags, or all of them as one JSON object
        name=rf'<\|open\|>call\s(?:(?s:(?!<\|sep\|>).)*\s)?tool="(?P<name>\L<names>)"{_SEP}',
        begins=rf"\s*(?:(?P<json><\|open\|>json{_SEP}){_OBJECT}|(?=<\|open\|>argument|<\|close\|>))",
        arguments=Tags(
            opening="<|open|>argument",
            tag=rf"<\|open\|>argument{_SEP}",
            end="<|close|>argument<|sep|>",
            call='<|open|>call tool="NAME"<|sep|>ARGUMENT<|close|>call<|sep|>',
            close="<|close|>call<|sep|>",
            strips=(str, str),
        ),
        json=partial(JsonArguments, stops=("<|close|>",)),
        again=r"\s*(?:(?:<\|close\|>json<\|sep\|>\s*)?<\|close\|>call<\|sep\|>\s*)?",
        tail=r"\s*(?:(?:<\|close\|>json<\|sep\|>\s*)?<\|close\|>call<\|sep\|>)?",
    ),
    "qwen3_coder": _FUNCTION,
    "seed": _FUNCTION,
    "minimax_m2": CallShape(
        name=r"""<invoke name=["']?(?P<name>\L<names>)["']?>""",
        arguments=Tags(
            opening="<parameter name=",
            tag=r"<parameter name=[^<>]*>",
            end="</parameter>",
            call='<invoke name="NAME">ARGUMENT</invoke>',
            close="</invoke>",
        ),
        again=_SPACE,
    ),
    "minicpm5": CallShape(
        name=r"""["']?(?P<name>\L<names>)["']?\s*>""",
        arguments=Tags(
            opening="<param",
            tag=r"<param\s+name\s*=[^<>]*>(?:\s*(?P<raw><!\[CDATA\[)|(?=\s*[^\s<]|\s*<[^!]))",
            end="</param>",
            call='"NAME">ARGUMENT',
            raw_end="]]>",
        ),
    ),
    "muse_spark": CallShape(
        name=r'<atem:invoke\s(?:[^<>]*\s)?name="(?P<name>\L<names>)">',
        arguments=Tags(
            opening="<atem:parameter",
            tag=r'<atem:parameter\s(?:[^<>]*\s)?name="[^"]+"[^<>]*>',
            end="</atem:parameter>",
            call='<atem:invoke name="NAME">ARGUMENT</atem:invoke>',
            close="</atem:invoke>",
            guesses=True,
        ),
        again=_SPACE,
    ),
    "glm47": _glm(""),
    "laguna": _glm(""),
    "longcat": _glm("longcat_"),
    "function_gemma": CallShape(
        name=r"call:(?P<name>\L<names>)\{",
        arguments=partial(LiteralArguments, call="call:f{x:VALUE}", quote="<escape>"),
        again=r"\s*,?\s*",
    ),
    "gemma4": CallShape(
        name=r"call:(?P<name>\L<names>)\{",
        arguments=partial(LiteralArguments, call="call:f{x:VALUE}", quote='<|"|>'),
        again=r"\s*,?\s*",
    ),
    "pythonic": _PYTHONIC,
    "pythonic_lines": replace(  # a call on each line
        _PYTHONIC, first=_LIST, again=r"\s*,?\s*", tail=r"\s*,?\s*\]?"
    ),
}
"""The formats that can be read while they grow: mlx-lm's, by the names of its parsers, and ours."""
