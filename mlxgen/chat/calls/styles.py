"""The ways in which models write a call, as values that reading, writing and grammars share.

A ``Style`` has the published pieces, from which ``write`` makes text and the grammar makes rules,
and the patterns that calls are read by, which allow for models' mistakes. Invariant: the calls that
``write`` writes are read back unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import regex

from .values import JSON, PYTHON, Notation, dumped

Pieces: TypeAlias = tuple[str, ...]
TEXT = "{text}"  # a piece that stands for any text
FENCES = ("```json", "```xml", "```tool_call", "```tool_code", "```")  # may surround calls
NEVER = "(?!)"


def filled(pieces: Iterable[str], **values: str) -> str:
    """The text of some pieces, with values for the names in braces."""
    return _PLACE.sub(lambda place: values.get(place[1], place[0]), "".join(pieces))


_PLACE = regex.compile(r"\{(name|quoted|index|key|kind)\}")


def any_of(texts: Iterable[str]) -> str:
    """A pattern of any of the texts, the longest first."""
    return "|".join(map(regex.escape, sorted(texts, key=len, reverse=True))) or NEVER


class Tags(NamedTuple):
    """The patterns of arguments between tags, where strings are not escaped.

    - ``tag``: the tag before a value; it may say which of two ``kinds`` the value has: a string, or
      anything else. ``half``: an incomplete tag, read if its key is known.
    - ``end`` and ``over``: what follows a value, with its ``{key}``, and what follows all of them.
    - ``body`` and ``body_end``: what may surround arguments that are one JSON object instead.
    - ``lines``: a value is on lines of its own; else it may be, unless it is ``exact``.
    - ``nested``: the mark before each tag, also before those inside a value, which are the members
      of an object or the items of a list.
    """

    tag: str
    end: str
    over: str = NEVER
    half: str = (
        r"(?:<|(?<![/\w=\"'<]))(?:atem:)?(?:param(?:eter)?)?[\s=]{0,9}(?:name\s*=\s*)?"
        r"[\"']?(?P<key>\L<keys>)[\"']?\s*>"
    )
    body: str = NEVER
    body_end: Pieces = ()
    lines: bool = False
    exact: bool = False
    nested: str = ""
    kinds: tuple[str, str] = ("true", "false")


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """The text between the marks of calls. A piece is a mark or text.

    To write calls:

    - ``open``, ``close``: around the arguments of a call, with the function's ``{name}``, or
      ``{quoted}`` as JSON, and perhaps the ``{index}`` of the call.
    - ``key``, ``after``: around the value of each argument, with its ``{key}`` and perhaps the
      ``{kind}`` of its value; without a ``key``, the arguments are one JSON object. ``comma``
      separates arguments. ``value`` writes a value.
    - ``around``, ``between``: around all calls, and between two; None: a grammar allows only one.
    - ``spaced``: white space may stand between any two pieces of a call.

    To read calls:

    - ``head``: the pattern of what precedes the arguments, with the ``name``; "": the call is an
      object that has both.
    - ``tags``: the arguments stand between tags; ``brackets``: they end at this bracket, and are in
      a ``notation``; else they are one JSON object, which one of ``ends`` may follow.
    - ``first``, ``again``, ``tail``: what may come before the first call, between two and after the
      last, besides white space. ``begins``: how a call begins.
    """

    open: Pieces
    close: Pieces = ()
    key: Pieces = ()
    after: Pieces = ()
    comma: str = ""
    value: Callable[[Any], str] = dumped
    around: tuple[str, str] = ("", "")
    between: str | None = None
    spaced: bool = False
    head: str = ""
    tags: Tags | None = None
    brackets: str = ""
    notation: Notation = JSON
    ends: Pieces = ()
    first: Pieces = ()
    again: Pieces = ()
    tail: Pieces = ()
    begins: Pieces = ()

    def write(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """Calls without the marks around them all."""
        texts, kinds = [], ("", "") if self.tags is None else self.tags.kinds
        for i, (name, arguments) in enumerate(calls):
            values = {"name": name, "quoted": dumped(name), "index": str(i)}
            inner = dumped(dict(arguments))
            if self.key:
                inner = self.comma.join(
                    filled(self.key, key=key, kind=kinds[not isinstance(value, str)])
                    + self.value(value)
                    + filled(self.after, key=key)
                    for key, value in arguments.items()
                )
            texts.append(filled(self.open, **values) + inner + filled(self.close, **values))
        between = "\n" if self.between is None else self.between
        return self.around[0] + between.join(texts) + self.around[1]


def written(notation: Notation, value: Any) -> str:
    """A value in a notation."""
    if isinstance(value, dict):
        keys = [f"{dumped(key)}: " if notation.python else f"{key}:" for key in value]
        texts = [written(notation, each) for each in value.values()]
        return f"{{{', '.join(map(''.join, zip(keys, texts, strict=True)))}}}"
    if isinstance(value, list):
        return f"[{', '.join(written(notation, each) for each in value)}]"
    if notation.python and (value is None or isinstance(value, bool)):
        return str(value)
    quote = notation.raw if isinstance(value, str) else ""
    return f"{quote}{value}{quote}" if quote else dumped(value)


def as_text(value: Any) -> str:
    """A string as it is, and any other value as JSON."""
    return value if isinstance(value, str) else dumped(value)


# ---- objects -------------------------------------------------------------------------------------


def objects(*keys: str, listed: bool = False, opening: str = "") -> Style:
    """``{"name": ..., "arguments": {...}}``, in sequence or ``listed``, perhaps after an
    ``opening``; if the first of two ``keys`` is empty, the name is the key of the arguments."""
    first, second = keys or ("name", "arguments")
    named = ("{", f'"{first}"', ": ", "{quoted}", ", ", f'"{second}"', ": ")
    return Style(
        open=named if first else ("{", "{quoted}", ": "),
        close=("}",),
        around=(f"{opening}[", "]") if listed else ("", ""),
        between=", " if listed else None,
        spaced=True,
        head="" if first else rf"\{{\s*[\"']{NAME}[\"']\s*:",
        ends=() if first else ("}",),
        first=("[",),
        again=(",", ";"),
        tail=(",", "]", "}", "```"),
        begins=("{",),
    )


NAME = r"(?P<name>[^\s<>{}()\[\]\"'`,;=]++)"  # possessive: never backtracks into a long name
_MORE = r"(?:\s+[\w:]+\s*=\s*\"[^\"<>]*\")*?"  # other attributes of a tag
OBJECTS = objects()  # read between the marks of any format
LISTED = objects(listed=True)
PYTHONIC = Style(
    open=("{name}(",),
    key=("{key}=",),
    comma=", ",
    close=(")",),
    value=partial(written, PYTHON),
    around=("[", "]"),
    between=", ",
    head=rf"{NAME}\s*\(",
    brackets=")",
    notation=PYTHON,
    first=("[",),
    again=(",", ";"),
    tail=(",", "]"),
    begins=("{name}(",),
)


def gemma(quote: str) -> Style:
    """Gemma's style: words and numbers without quotes, and strings between these quotes."""
    notation = Notation(('"""', '"', "'"), raw=quote, words=True)
    return Style(
        open=("call:{name}{",),
        key=("{key}:",),
        comma=",",
        close=("}",),
        value=partial(written, notation),
        head=rf"(?:call:)?\s*{NAME}\s*\{{",
        brackets="}",
        notation=notation,
        again=(",",),
        begins=("call:",),
    )


# ---- a head, and one object ----------------------------------------------------------------------


def deepseek(head: Pieces, close: Pieces = ()) -> Style:
    begin, end = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
    return Style(
        open=(begin, *head),
        close=(*close, end),
        between="",
        head=rf"(?:{begin}\s*)?(?:function\s*<｜tool▁sep｜>\s*)?{NAME}\s*(?:<｜tool▁sep｜>)?"
        rf"\s*(?=[{{\"n`]|{end})",
        ends=("```", end),
        begins=(begin,),
    )


HARMONY = Style(
    open=("<|channel|>", "commentary to=functions.{name} ", "<|constrain|>", "json", "<|message|>"),
    close=("<|call|>",),
    between="<|start|>assistant",
    head=rf"(?:functions\.)?{NAME}"
    r"(?:(?!<\|(?:message|start|end|call)\|>)(?s:.)){0,120}?(?:<\|message\|>|(?=\{|<\|call\|>))",
    ends=("```", "<|call|>"),
)
KIMI_K2 = Style(
    open=("<|tool_call_begin|>", "functions.{name}:{index}", "<|tool_call_argument_begin|>"),
    close=("<|tool_call_end|>",),
    between="",
    head=rf"<\|tool_call_begin\|>\s*(?P<id>{NAME})\s*"
    r"(?:<\|tool_call_argument_begin\|>|(?=\{|<\|tool_call_end\|>))",
    ends=("```", "<|tool_call_end|>"),
    begins=("<|tool_call_begin|>",),
)
MISTRAL = Style(
    open=("{name}", "[ARGS]"),
    between="[TOOL_CALLS]",
    head=rf"{NAME}\s*(?:\[TOOL_CALLS\]\s*)?"
    r"(?:\[CALL_ID\]\s*(?P<id>[\w-]+)\s*)?(?:\[ARGS\]|(?=\{))",
    again=("[TOOL_CALLS]", ","),
    begins=("{name}[ARGS]", "{name}{"),
)

# ---- arguments between tags ----------------------------------------------------------------------


def function(line: str) -> Style:
    """Qwen3-Coder's style; ``line`` stands before and after a value."""
    return Style(
        open=("<function={name}>\n",),
        key=(f"<parameter={{key}}>{line}",),
        after=(f"{line}</parameter>\n",),
        close=("</function>",),
        value=as_text,
        head=rf"<function(?:\s+name)?\s*=\s*[\"']?{NAME}[\"']?(?:\s*>|(?=\s*\n\s*<parameter))",
        tags=Tags(
            tag=r"<parameter(?:\s+name)?\s*=\s*[\"']?(?P<key>[^<>\"'\n]++)(?:[\"']?\s*>|(?=\n))",
            end="</(?:parameter|{key})>",
            over="</function>",
            lines=True,
        ),
        begins=("<function=", "<function name="),
    )


def invoke(prefix: str, kind: str = "") -> Style:
    """Tags with names as attributes; each element's name begins with ``prefix``, perhaps followed
    by a space. ``kind`` is another attribute of parameters."""
    begins = rf"{prefix}\s?" if kind else prefix
    return Style(
        open=(f'<{prefix}invoke name="{{name}}">\n',),
        key=(f'<{prefix}parameter name="{{key}}"{kind}>',),
        after=(f"</{prefix}parameter>\n",),
        close=(f"</{prefix}invoke>",),
        value=as_text,
        head=rf"<{begins}invoke{_MORE}\s+name\s*=\s*[\"']?{NAME}[\"']?[^<>]*>",
        tags=Tags(
            tag=(
                rf"<{begins}parameter{_MORE}\s+name\s*=\s*[\"']?(?P<key>[^\"'<>]++)[\"']?"
                r"(?:\s+string\s*=\s*\"(?P<kind>true|false)\")?[^<>]*>"
            ),
            end=rf"</(?:(?:{begins})?parameter|{{key}})>",
            over=f"</{begins}invoke>",
            exact=bool(kind),
        ),
        begins=(f"<{prefix}invoke", *((f"<{prefix} invoke",) if kind else ())),
    )


def glm(prefix: str) -> Style:
    """A function's name, then keys and values between tags whose names begin with ``prefix``."""
    key, key_end = f"<{prefix}arg_key>", f"</{prefix}arg_key>"
    value, value_end = f"<{prefix}arg_value>", f"</{prefix}arg_value>"
    return Style(
        open=("{name}\n",),
        key=(key, "{key}", key_end, "\n", value),
        after=(value_end, "\n"),
        value=as_text,
        head=rf"{NAME}(?=[\s<{{])",
        tags=Tags(
            tag=rf"{key}(?P<key>[^<>]+)(?:{key_end}|{value_end})?(?:\\n|\s)*{value}",
            half=rf"(?:{key})?\s{{0,9}}(?P<key>\L<keys>)\s*(?:{key_end})?(?:\\n|\s)*{value}",
            end=value_end,
        ),
    )


KIMI_K3 = Style(
    open=('<|open|>call tool="{name}" index="{index}"<|sep|>',),
    key=('<|open|>argument key="{key}" type="{kind}"<|sep|>',),
    after=("<|close|>argument<|sep|>",),
    close=("<|close|>call<|sep|>",),
    value=as_text,
    head=rf"(?:<\|open\|>\s*)+call{_MORE}\s+tool=\"{NAME}\"{_MORE}\s*<\|sep\|>",
    tags=Tags(
        tag=(
            r"(?:<\|open\|>\s*)+argument\s+key=\"(?P<key>[^\"]+)\"(?:\s+type=\"(?P<kind>\w+)\")?"
            rf"{_MORE}\s*<\|sep\|>"
        ),
        half=NEVER,
        end=r"<\|close\|>argument<\|sep\|>",
        over=r"<\|close\|>call<\|sep\|>",
        body=rf"<\|open\|>json{_MORE}\s*<\|sep\|>",
        body_end=("<|close|>json<|sep|>",),
        kinds=("string", "object"),
        exact=True,
    ),
    begins=("<|open|>call", "<|open|><|open|>call"),
)


def nested(mark: str) -> Style:
    """MiniMax M3's style: tags named like the arguments and their members, each after a mark."""

    def told(value: Any) -> str:
        if isinstance(value, dict | list):
            each = value.items() if isinstance(value, dict) else (("item", item) for item in value)
            return "".join(f"{mark}<{key}>{told(part)}{mark}</{key}>" for key, part in each)
        return as_text(value)

    begin = regex.escape(mark)
    return Style(
        open=(f'{mark}<invoke name="{{name}}">',),
        key=(f"{mark}<{{key}}>",),
        after=(f"{mark}</{{key}}>",),
        close=(f"{mark}</invoke>\n",),
        between="",
        value=told,
        head=rf"{begin}<invoke\s+name\s*=\s*[\"']?{NAME}[\"']?\s*>",
        tags=Tags(
            tag=rf"{begin}<(?P<key>[^<>/\s\"]+)>",
            half=NEVER,
            end=rf"{begin}</{{key}}>",
            over=rf"{begin}</invoke>",
            lines=True,
            exact=True,
            nested=mark,
        ),
        begins=(f"{mark}<invoke",),
    )


MINICPM = Style(
    open=('<function name="{name}">',),
    key=('<param name="{key}">',),
    after=("</param>",),
    close=("</function>",),
    value=as_text,
    head=rf"<function\s*(?:name)?\s*=\s*[\"']?{NAME}[\"']?(?:\s*>|(?=\s*<param|\s+\w+=))",
    tags=Tags(
        tag=(
            r"<param\s*(?:name)?\s*=\s*(?:[\"'](?P<key>[^\"'<>]+)[\"'](?:\s*>|(?=[^\s>]))|(?P<key>[^\"'<>]+)>)"
            r"(?:\s*(?P<raw><!\[CDATA\[)|(?=\s*[^\s<]|\s*<[^!]))"
        ),
        end="</(?:param|{key})>",
        over="</function>",
    ),
    begins=("<function",),
)
