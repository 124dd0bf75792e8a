"""The formats of calls, one record each: what its makers publish, and how models slip.

A record says everything about a format: reader, writer and grammar are made from it. A new family
is a new record here, and a few golden answers in ``tests/chat/golden.jsonl``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

from .styles import TEXT, Headed, Literals, Objects, Pieces, Style, Tagged, as_text
from .values import PYTHON, Notation

_LINES = ("{", "[", "```")  # how JSON begins, perhaps in a fence


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How a model writes calls, and how that is told from its template and its added tokens.

    - ``style``: the name of the format, which is that of mlx-lm's parser if there is one.
    - ``start``, ``end``: the marks around calls; "": there is none, or a header says it.
    - ``body``: what stands between them; ``others``: what models write there as well.
    - ``also``, ``ends``: other marks with which calls begin and end; ``borders``: other marks that
      may come after a call.
    - ``bare``: how a call begins without any mark, anywhere in the answer; ``{name}`` stands for
      the names of tools. ``lines``: the same at the beginning of a line; ``alone``: only if nothing
      or the ``end`` follows.
    - ``paired``: every call has marks of its own; ``space`` comes after the first and before the
      second; ``enforced``: a grammar can be made of it.
    - ``thought``: what may come before a call, with any ``TEXT``; such a call ends the answer.
    - ``template``, ``tokens``: texts that must all be in the chat template, and tokens that the
      vocabulary must have.
    """

    style: str
    start: str
    end: str
    body: Style
    _: KW_ONLY
    others: tuple[Style, ...] = ()
    also: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    borders: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()
    lines: tuple[str, ...] = _LINES
    alone: bool = True
    paired: bool = False
    space: str = ""
    enforced: bool = True
    thought: Pieces = ()
    template: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()

    @property
    def starts(self) -> tuple[str, ...]:
        """All marks with which calls begin."""
        return tuple(dict.fromkeys(filter(None, (self.start, *self.also))))

    @property
    def all_ends(self) -> tuple[str, ...]:
        """All marks with which they end."""
        return tuple(dict.fromkeys(filter(None, (self.end, *self.ends))))

    @property
    def begins(self) -> tuple[str, ...]:
        """The beginnings of calls between the marks."""
        return tuple(text for style in self.styles for text in style.begins)

    @property
    def announced(self) -> bool:
        """Whether calls can be enforced as soon as a mark has begun them."""
        return bool(self.start) and self.enforced

    @property
    def styles(self) -> tuple[Style, ...]:
        """All that may stand between the marks, the published one first."""
        return (self.body, *self.others, *(() if isinstance(self.body.reads, Objects) else (_ANY,)))

    def write(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """Calls as the model itself writes them, with their marks."""
        groups = [[call] for call in calls] if self.paired else [calls]
        inner = [f"{self.space}{self.body.write(group)}{self.space}" for group in groups]
        return "\n".join(f"{self.start}{text}{self.end}" for text in inner)

    @classmethod
    def of(cls, tokenizer: Any, template: str, tokens: Collection[str]) -> CallFormat | None:
        """The format of a model: as mlx-lm knows it, else as its ``template`` and its added
        ``tokens`` tell it. None if nothing does."""
        if tokenizer.has_tool_calling and tokenizer.tool_parser is not None:
            style = tokenizer.tool_parser.__module__.rpartition(".")[2]
            if style in FORMATS:
                return FORMATS[style]
        for format in FORMATS.values():
            texts = all(text in template for text in format.template)
            if (format.template or format.tokens) and texts and set(format.tokens) <= {*tokens}:
                return format
        return None


def _objects(*keys: str, listed: bool = False, opening: str = "") -> Style:
    """``{"name": ..., "arguments": {...}}``, one after the other or ``listed``, perhaps after an
    ``opening``; if the first of two ``keys`` is empty, the name is the key of the arguments."""
    first, second = keys or ("name", "arguments")
    named = ("{", f'"{first}"', ": ", "{quoted}", ", ", f'"{second}"', ": ")
    return Style(
        reads=Objects(by_name=not first),
        open=named if first else ("{", "{quoted}", ": "),
        close=("}",),
        around=(f"{opening}[", "]") if listed else ("", ""),
        between=", " if listed else None,
        spaced=True,
        first=("[", "```json", "```tool_call", "```tool_code", "```"),
        again=(",", ";"),
        tail=(",", "]", "}", "```"),
        begins=("{",),
    )


_ANY = _objects()  # what other models write, read between the marks of any format
_LIST = _objects(listed=True)
_NAME = r"(?P<name>[^\s<>{}()\[\]\"'`,;=]++)"  # possessive: a long one is not tried in pieces
_MORE = r"(?:\s+[\w:]+\s*=\s*\"[^\"<>]*\")*?"  # other attributes of a tag


def _function(line: str) -> Style:
    """Qwen3-Coder's; ``line``: what stands around a value."""
    return Style(
        open=("<function={name}>\n",),
        key=(f"<parameter={{key}}>{line}",),
        after=(f"{line}</parameter>\n",),
        close=("</function>",),
        value=as_text,
        begins=("<function=",),
        reads=Tagged(
            head=rf"<function\s*=\s*[\"']?{_NAME}[\"']?(?:\s*>|(?=\s*\n\s*<parameter))",
            tag=r"<parameter\s*=\s*[\"']?(?P<key>[^<>\"'\n]++)(?:[\"']?\s*>|(?=\n))",
            end="</(?:parameter|{key})>",
            over="</function>",
            lines=bool(line),
        ),
    )


def _invoke(prefix: str, kind: str = "") -> Style:
    """Tags with names as attributes; the ``prefix`` begins those of all elements."""
    invoke, over, parameter = f"{prefix}invoke", f"</{prefix}invoke>", f"{prefix}parameter"
    return Style(
        open=(f'<{invoke} name="{{name}}">\n',),
        key=(f'<{parameter} name="{{key}}"{kind}>',),
        after=(f"</{parameter}>\n",),
        close=(over,),
        value=as_text,
        begins=(f"<{invoke}",),
        reads=Tagged(
            head=rf"<{invoke}{_MORE}\s+name\s*=\s*[\"']?{_NAME}[\"']?[^<>]*>",
            tag=(
                rf"<{parameter}{_MORE}\s+name\s*=\s*[\"']?(?P<key>[^\"'<>]++)[\"']?"
                r"(?:\s+string\s*=\s*\"(?P<kind>true|false)\")?[^<>]*>"
            ),
            end=f"</(?:{parameter}|{{key}})>",
            over=over,
            exact=bool(kind),
        ),
    )


def _glm(prefix: str) -> Style:
    """A name, and keys and values between tags whose names begin with ``prefix``."""
    key, key_end = f"<{prefix}arg_key>", f"</{prefix}arg_key>"
    value, value_end = f"<{prefix}arg_value>", f"</{prefix}arg_value>"
    return Style(
        open=("{name}\n",),
        key=(key, "{key}", key_end, "\n", value),
        after=(value_end, "\n"),
        value=as_text,
        reads=Tagged(
            head=rf"{_NAME}(?=[\s<{{])",
            tag=rf"{key}(?P<key>[^<>]+)(?:{key_end}|{value_end})(?:\\n|\s)*{value}",
            half=rf"(?:{key})?\s{{0,9}}(?P<key>\L<keys>)\s*(?:{key_end})?(?:\\n|\s)*{value}",
            end=value_end,
        ),
    )


def _deepseek(head: Pieces, close: Pieces = ()) -> Style:
    begin, end = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
    return Style(
        open=(begin, *head),
        close=(*close, end),
        between="",
        begins=(begin,),
        reads=Headed(
            rf"{begin}\s*(?:function\s*<｜tool▁sep｜>\s*)?{_NAME}\s*(?:<｜tool▁sep｜>)?"
            rf"\s*(?:```(?:json)?)?\s*(?=\{{|{end})",
            ("```", end),
        ),
    )


def _gemma(quote: str) -> Style:
    notation = Notation(('"""', '"', "'"), raw=quote, words=True)
    return Style(
        open=("call:{name}{",),
        key=("{key}:",),
        comma=",",
        close=("}",),
        value=notation.written,
        begins=("call:",),
        again=(",",),
        reads=Literals(rf"(?:call:)?\s*{_NAME}\s*\{{", "}", notation),
    )


_PYTHON = Style(
    open=("{name}(",),
    key=("{key}=",),
    comma=", ",
    close=(")",),
    value=PYTHON.written,
    around=("[", "]"),
    between=", ",
    first=("[",),
    again=(",", ";"),
    tail=(",", "]"),
    begins=("{name}(",),
    reads=Literals(rf"{_NAME}\s*\(", ")", PYTHON),
)
_HARMONY = Style(
    open=("<|channel|>", "commentary to=functions.{name} ", "<|constrain|>", "json", "<|message|>"),
    close=("<|call|>",),
    between="<|start|>assistant",
    reads=Headed(
        rf"(?:functions\.)?{_NAME}"
        r"(?:(?!<\|(?:message|start|end|call)\|>)(?s:.)){0,120}(?:<\|message\|>|(?=<\|call\|>))",
        ("<|call|>",),
    ),
)
_KIMI_K2 = Style(
    open=("<|tool_call_begin|>", "functions.{name}:{index}", "<|tool_call_argument_begin|>"),
    close=("<|tool_call_end|>",),
    between="",
    begins=("<|tool_call_begin|>",),
    reads=Headed(
        rf"<\|tool_call_begin\|>\s*(?P<id>{_NAME})\s*"
        r"(?:<\|tool_call_argument_begin\|>|(?=\{|<\|tool_call_end\|>))",
        ("<|tool_call_end|>",),
    ),
)
_KIMI_K3 = Style(
    open=('<|open|>call tool="{name}" index="{index}"<|sep|>',),
    key=('<|open|>argument key="{key}" type="{kind}"<|sep|>',),
    after=("<|close|>argument<|sep|>",),
    close=("<|close|>call<|sep|>",),
    value=as_text,
    begins=("<|open|>call", "<|open|><|open|>call"),
    reads=Tagged(
        head=rf"(?:<\|open\|>\s*)+call{_MORE}\s+tool=\"{_NAME}\"{_MORE}\s*<\|sep\|>",
        tag=(
            r"(?:<\|open\|>\s*)+argument\s+key=\"(?P<key>[^\"]+)\"(?:\s+type=\"(?P<kind>\w+)\")?"
            rf"{_MORE}\s*<\|sep\|>"
        ),
        half="(?!)",
        end=r"<\|close\|>argument<\|sep\|>",
        over=r"<\|close\|>call<\|sep\|>",
        body=rf"<\|open\|>json{_MORE}\s*<\|sep\|>",
        body_end=("<|close|>json<|sep|>",),
        kinds=("string", "object"),
        exact=True,
    ),
)
_MINICPM = Style(
    open=('<function name="{name}">',),
    key=('<param name="{key}">',),
    after=("</param>",),
    close=("</function>",),
    value=as_text,
    begins=("<function",),
    reads=Tagged(
        head=rf"<function\s*(?:name)?\s*=\s*[\"']?{_NAME}[\"']?(?:\s*>|(?=\s*<param|\s+\w+=))",
        tag=(
            r"<param\s*(?:name)?\s*=\s*(?:[\"'](?P<key>[^\"'<>]+)[\"'](?:\s*>|(?=[^\s>]))|(?P<key>[^\"'<>]+)>)"
            r"(?:\s*(?P<raw><!\[CDATA\[)|(?=\s*[^\s<]|\s*<[^!]))"
        ),
        end="</(?:param|{key})>",
        over="</function>",
    ),
)
_MISTRAL = Style(
    open=("{name}", "[ARGS]"),
    between="[TOOL_CALLS]",
    again=("[TOOL_CALLS]", ","),
    begins=("{name}[ARGS]", "{name}{"),
    reads=Headed(
        rf"{_NAME}\s*(?:\[TOOL_CALLS\]\s*)?"
        r"(?:\[CALL_ID\]\s*(?P<id>[\w-]+)\s*)?(?:\[ARGS\]|(?=\{))",
    ),
)
_MARKS: Mapping[str, Any] = {  # of objects, which models take for one another
    "also": (
        *("<tool_call>", "<tool_calls>", "<TOOLCALL>", "<function_call>", "<|tool_call|>"),
        *("<tools>", "<tool>"),  # in which their templates show the tools
    ),
    "ends": (
        *("</tool_call>", "</tool_calls>", "</TOOLCALL>", "</function_call>", "<|/tool_call|>"),
        *("</tools>", "</tool>"),
    ),
}
_HERMES: Mapping[str, Any] = {  # marks that many models have seen more often than their own
    "also": ("<tool_call>",),
    "ends": ("</tool_call>",),
}
_GLM_BARE = ("{name}<arg_key>", "{name}\n<arg_key>", "<function=")
_FUNCTION = _function("\n")
_DEEPSEEK: Mapping[str, Any] = {
    "also": ("<｜tool_calls_begin｜>", "<｜tool calls begin｜>", "<tool_call>"),
    "ends": ("</tool_call>",),
    "bare": ("<｜tool▁call▁begin｜>",),
}
_LLAMA: Mapping[str, Any] = {
    "also": ("<|python_start|>", "<|python_tag|>", "<tool_call>"),
    "ends": ("<|python_end|>", "</tool_call>"),
    "bare": ("[{name}(",),
    "alone": False,
}

_FORMATS = (
    CallFormat(  # gpt-oss
        *("harmony", "", "", _HARMONY),
        borders=("<|call|>", "<|end|>", "<|start|>", "<|channel|>"),
        thought=(
            *("<|channel|>", "analysis", "<|message|>", TEXT, "<|end|>", "<|start|>", "assistant"),
        ),
        lines=(),
        tokens=("<|channel|>", "<|message|>", "<|call|>"),
    ),
    CallFormat(  # DeepSeek V3.2 and later
        *("dsml", "<｜DSML｜function_calls>", "</｜DSML｜function_calls>"),
        _invoke("｜DSML｜", ' string="{kind}"'),
        also=("<｜DSML｜tool_calls>",),
        ends=("</｜DSML｜tool_calls>",),
        bare=("<｜DSML｜invoke",),
        enforced=False,
        tokens=("｜DSML｜",),
        space="\n",
    ),
    CallFormat(  # DeepSeek V3 and R1, and what was distilled from it
        *("deepseek_v3", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        _deepseek(("function", "<｜tool▁sep｜>", "{name}\n```json\n"), ("\n```",)),
        **_DEEPSEEK,
        template=("<｜tool▁calls▁begin｜>", "```json"),
    ),
    CallFormat(
        *("deepseek_v31", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        _deepseek(("{name}", "<｜tool▁sep｜>")),
        **_DEEPSEEK,
        template=("<｜tool▁calls▁begin｜>",),
    ),
    CallFormat(  # Command R7B, Command A
        *(
            "command",
            "<|START_ACTION|>",
            "<|END_ACTION|>",
            _objects("tool_name", "parameters", listed=True),
        ),
        template=("<|START_ACTION|>",),
    ),
    CallFormat(  # Command R, Command R+
        *("command_r", "", "```"),
        _objects("tool_name", "parameters", listed=True, opening="Action: ```json\n"),
        also=("Action:",),
        template=("Action:", "```json", '"tool_name"'),
    ),
    CallFormat(
        *("apertus", "<|tools_prefix|>", "<|tools_suffix|>", _objects("", "", listed=True)),
        others=(_ANY,),
        lines=(),
        template=("<|tools_prefix|>",),
    ),
    CallFormat(
        *("seed", "<seed:tool_call>", "</seed:tool_call>", _function("")),
        **_HERMES,
        bare=("<function=",),
        paired=True,
        template=("<seed:tool_call>",),
        space="\n",
    ),
    CallFormat(  # Hermes, and the many that write as it does
        *("json_tools", "<tool_call>", "</tool_call>", _ANY),
        others=(_FUNCTION, _glm(""), _PYTHON, _invoke("")),
        **_MARKS,
        bare=("<function=",),
        paired=True,
        template=("<tool_call>",),
        space="\n",
    ),
    CallFormat(  # Phi-4-mini, which has two ways
        *("phi", "<|tool_call|>", "<|/tool_call|>", _LIST),
        also=("functools", *_MARKS["also"]),
        ends=_MARKS["ends"],
        tokens=("<|tool_call|>", "<|/tool_call|>"),
    ),
    CallFormat(  # Granite 3
        *("granite", "<|tool_call|>", "", _LIST),
        **_MARKS,
        template=("<|tool_call|>",),
    ),
    CallFormat(  # Granite's 20B for function calling
        *("granite_20b", "<function_call>", "", _ANY),
        **_MARKS,
        template=("<function_call>",),
    ),
    CallFormat(
        *("nemotron", "<TOOLCALL>", "</TOOLCALL>", _LIST),
        **_MARKS,
        template=("<TOOLCALL>",),
    ),
    CallFormat(  # Jamba, Hunyuan, MiniMax M1, Apriel
        *("tool_calls", "<tool_calls>", "</tool_calls>", _LIST),
        **_MARKS,
        template=("<tool_calls>",),
    ),
    CallFormat(
        *(
            "internlm",
            "<|action_start|><|plugin|>",
            "<|action_end|>",
            _objects("name", "parameters"),
        ),
        also=("<|action_start|> <|plugin|>", "<|action_start|>\n<|plugin|>"),
        paired=True,
        tokens=("<|action_start|>", "<|plugin|>", "<|action_end|>"),
    ),
    CallFormat(
        *("olmo", "<function_calls>", "</function_calls>"),
        replace(_PYTHON, around=("\n", "\n"), between="\n"),
        lines=(*_LINES, "{name}("),
        template=("<function_calls>",),
    ),
    CallFormat(  # Llama 3.2 and 4, if they are asked for Python
        *("llama_pythonic", "", "", _PYTHON), **_LLAMA, template=("func_name1(",)
    ),
    CallFormat(  # Llama 3.1 and later
        *("llama_json", "", "", _objects("name", "parameters")),
        others=(_PYTHON, _FUNCTION),
        **{**_LLAMA, "bare": (*_LLAMA["bare"], "<function=")},
        template=('"parameters": dictionary of argument name and its value',),
    ),
    CallFormat(  # GigaChat 3 and 3.1
        *("gigachat", "<|message_sep|>\n\nfunction call<|role_sep|>\n", "", _ANY),
        also=("function call<|role_sep|>", "<|function_call|>"),
        ends=("<|message_sep|>",),
        paired=True,
        template=("'function call'", "<|role_sep|>"),
    ),
    CallFormat(
        *("gigachat31", "<|function_call|>", "", _ANY),
        also=("<|message_sep|>\n\nfunction call<|role_sep|>", "function call<|role_sep|>"),
        ends=("<|message_sep|>",),
        paired=True,
        template=("<|function_call|>", "<|role_sep|>"),
    ),
    CallFormat(
        *("xlam", "", "", _LIST),
        **_HERMES,
        alone=False,
        template=('[{"name": "tool_call_name", "arguments": ',),
    ),
    # Those for which mlx-lm has a parser, which tells them:
    CallFormat(  # a name and arguments, or a list of objects in older models
        *("mistral", "[TOOL_CALLS]", "", _MISTRAL),
        others=(_LIST,),
        **_HERMES,
        bare=("{name}[ARGS]", "{name}[TOOL_CALLS]{", "{name}[TOOL_CALLS][ARGS]"),
    ),
    CallFormat(
        *("kimi_k2", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", _KIMI_K2),
        also=("<|tool_call_section_begin|>", "<tool_call>"),
        ends=("<|tool_call_section_end|>", "</tool_call>"),
        bare=("<|tool_call_begin|>",),
    ),
    CallFormat(
        *("kimi_k3", "<|open|>tools<|sep|>", "<|close|>tools<|sep|>", _KIMI_K3),
        also=("<|open|><|open|>tools<|sep|>", "<|open|>tools"),
        bare=("<|open|>call",),
        enforced=False,
    ),
    CallFormat(
        *("qwen3_coder", "<tool_call>", "</tool_call>", _FUNCTION),
        bare=("<function=",),
        paired=True,
        space="\n",
    ),
    CallFormat(
        *("minimax_m2", "<minimax:tool_call>", "</minimax:tool_call>", _invoke("")),
        also=("<tool_call>", "<tool_calls>", "<function_calls>"),
        ends=("</tool_call>", "</tool_calls>", "</function_calls>"),
        bare=("<invoke name=",),
        paired=True,
        space="\n",
    ),
    CallFormat(
        *("minicpm5", "", "", _MINICPM),
        bare=("<function name=", "<functionname=", "<function="),
        enforced=False,
    ),
    CallFormat(
        *("muse_spark", "<atem:function_calls>", "</atem:function_calls>"),
        _invoke("atem:"),
        bare=("<atem:invoke",),
        enforced=False,
        space="\n",
    ),
    CallFormat(
        *("glm47", "<tool_call>", "</tool_call>", _glm("")),
        others=(_FUNCTION,),
        bare=_GLM_BARE,
        paired=True,
    ),
    CallFormat(
        *("longcat", "<longcat_tool_call>", "</longcat_tool_call>", _glm("longcat_")),
        **_HERMES,
        bare=("{name}<longcat_arg_key>", "{name}\n<longcat_arg_key>"),
        paired=True,
        enforced=False,
    ),
    CallFormat(
        *("function_gemma", "<start_function_call>", "<end_function_call>", _gemma("<escape>")),
        bare=("call:{name}",),
        paired=True,
        enforced=False,
    ),
    CallFormat(
        *("gemma4", "<|tool_call>", "<tool_call|>", _gemma('<|"|>')),
        also=("<|tool_call>:", "<call>"),
        ends=("<turn|>",),
        bare=("call:",),
        paired=True,
        enforced=False,
    ),
    CallFormat(  # LFM2
        *("pythonic", "<|tool_call_start|>", "<|tool_call_end|>", _PYTHON),
        **_HERMES,
        bare=("[{name}(",),
        lines=(*_LINES, "{name}("),
    ),
)

FORMATS: Mapping[str, CallFormat] = {format.style: format for format in _FORMATS} | {
    "laguna": next(format for format in _FORMATS if format.style == "glm47")
}
"""All formats, by their names."""
