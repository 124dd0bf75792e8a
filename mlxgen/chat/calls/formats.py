"""The formats of calls, one record each: what its makers publish, and how models slip.

A record says everything about a format: reader, writer and grammar are made from it. A new family
is a new record here, and a few golden answers in ``tests/chat/golden.jsonl``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...tokens import Token
from .styles import ARGUMENTS, Headed, Literals, Objects, Pieces, Style, Tagged
from .values import PYTHON, Notation


@dataclass(frozen=True, slots=True, kw_only=True)
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
    - ``paired``: every call has marks of its own; ``enforced``: a grammar can be made of it.
    - ``template``, ``tokens``: texts that must all be in the chat template, and tokens that the
      vocabulary must have.
    - ``start_tokens``, ``end_tokens`` spell the marks in a model's vocabulary.
    """

    style: str
    start: str = ""
    end: str = ""
    body: Style
    others: tuple[Style, ...] = ()
    also: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    borders: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    alone: bool = False
    paired: bool = False
    enforced: bool = True
    template: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    start_tokens: tuple[Token, ...] = ()
    end_tokens: tuple[Token, ...] = ()

    @property
    def starts(self) -> tuple[str, ...]:
        """All marks with which calls begin."""
        return (self.start, *self.also) if self.start else self.also

    @property
    def styles(self) -> tuple[Style, ...]:
        """All that may stand between the marks, the published one first."""
        return (self.body, *self.others, *(() if isinstance(self.body, Objects) else (_ANY,)))

    def write(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """Calls as the model itself writes them, with their marks."""
        if not self.paired:
            return f"{self.start}{self.body.write(calls)}{self.end}"
        space = "\n" if isinstance(self.body, Objects) else ""
        return "\n".join(
            f"{self.start}{space}{self.body.write([call])}{space}{self.end}" for call in calls
        )

    @classmethod
    def of(cls, tokenizer: Any, template: str, tokens: Collection[str]) -> CallFormat | None:
        """The format of a model: as mlx-lm knows it, else as its ``template`` and its added
        ``tokens`` tell it. None if nothing does."""
        known = None
        if tokenizer.has_tool_calling and tokenizer.tool_parser is not None:
            style = tokenizer.tool_parser.__module__.rpartition(".")[2]
            known = FORMATS.get(style)
        if known is None:
            known = next(
                (
                    format
                    for format in FORMATS.values()
                    if (format.template or format.tokens)
                    and all(text in template for text in format.template)
                    and all(token in tokens for token in format.tokens)
                ),
                None,
            )
        if known is None:
            return None

        def spelled(mark: str) -> tuple[Token, ...]:
            return tuple(map(int, tokenizer.encode(mark, add_special_tokens=False)))

        return replace(known, start_tokens=spelled(known.start), end_tokens=spelled(known.end))


_ANY = Objects()  # what other models write, read between the marks of any format
_PARAMETERS = ("name", "parameters")
_TOOLS = ("tool_name", "parameters")
_NAME = r"(?P<name>[^\s<>{}()\[\]\"'`,;=]+)"
_OBJECT_MARKS = ("<tool_call>", "<tool_calls>", "<TOOLCALL>", "<function_call>", "<|tool_call|>")
_OBJECT_ENDS = ("</tool_call>", "</tool_calls>", "</TOOLCALL>", "</function_call>")

_FUNCTION = Tagged(  # Qwen3-Coder
    open=("<function={name}>\n",),
    key=("<parameter={key}>\n",),
    after=("\n</parameter>\n",),
    close=("</function>",),
    head=rf"<function\s*=\s*[\"']?{_NAME}[\"']?\s*>",
    tag=r"<parameter\s*=\s*[\"']?(?P<key>[^<>\"']+)[\"']?\s*>",
    end="</parameter>",
    over="</function>",
    lines=True,
    begins=("<function=",),
)


def _glm(prefix: str) -> Tagged:
    """A name, and keys and values between tags whose names begin with ``prefix``."""
    key, key_end = f"<{prefix}arg_key>", f"</{prefix}arg_key>"
    value, value_end = f"<{prefix}arg_value>", f"</{prefix}arg_value>"
    return Tagged(
        open=("{name}\n",),
        key=(key, "{key}", key_end, "\n", value),
        after=(value_end, "\n"),
        head=rf"{_NAME}(?=[\s<])",
        tag=rf"{key}(?P<key>[^<>]+)(?:{key_end}|{value_end})(?:\\n|\s)*{value}",
        half=rf"(?:{key})?\s*(?P<key>\L<keys>)\s*(?:{key_end})?(?:\\n|\s)*{value}",
        end=value_end,
    )


def _headed(*pieces: str, head: str, close: Pieces, begins: str) -> Headed:
    return Headed(pieces=pieces, head=head, close=close, begins=(begins,))


_DEEPSEEK_HEAD = (
    r"<｜tool▁call▁begin｜>\s*(?:function\s*<｜tool▁sep｜>\s*)?"
    rf"{_NAME}\s*(?:<｜tool▁sep｜>)?\s*(?:```(?:json)?)?"
    r"\s*(?=\{|<｜tool▁call▁end｜>)"
)
_DEEPSEEK_CLOSE = ("```", "<｜tool▁call▁end｜>")
_DEEPSEEK_MARKS: Mapping[str, Any] = {
    "start": "<｜tool▁calls▁begin｜>",
    "end": "<｜tool▁calls▁end｜>",
    "also": ("<｜tool_calls_begin｜>", "<｜tool calls begin｜>"),
    "bare": ("<｜tool▁call▁begin｜>",),
}
_PYTHON = Literals(
    head=rf"{_NAME}\s*\(",
    brackets="()",
    signs=("=", ", "),
    notation=PYTHON,
    around=("[", "]"),
    between=", ",
    first=("[",),
    again=(",", ";"),
    tail=(",", "]"),
    begins=("{name}(",),
)


def _gemma(quote: str) -> Literals:
    return Literals(
        head=rf"call:\s*{_NAME}\s*\{{",
        brackets="{}",
        signs=(":", ","),
        notation=Notation(('"""', '"', "'"), raw=quote, words=True),
        before="call:",
        begins=("call:",),
    )


_FORMATS = (
    CallFormat(  # gpt-oss
        style="harmony",
        body=Headed(
            pieces=(
                *("<|channel|>", "commentary to=functions.{name} ", "<|constrain|>", "json"),
                *("<|message|>", ARGUMENTS, "<|call|>"),
            ),
            between="<|start|>assistant",
            head=(
                rf"(?:functions\.)?{_NAME}"
                r"(?:(?!<\|(?:message|start|end|call)\|>)(?s:.))*<\|message\|>"
            ),
            close=("<|call|>",),
        ),
        borders=("<|call|>", "<|end|>", "<|start|>", "<|channel|>"),
        tokens=("<|channel|>", "<|message|>", "<|call|>"),
    ),
    CallFormat(  # DeepSeek V3.2 and later
        style="dsml",
        start="<｜DSML｜function_calls>",
        end="</｜DSML｜function_calls>",
        body=Tagged(
            open=('\n<｜DSML｜invoke name="{name}">\n',),
            key=('<｜DSML｜parameter name="{key}" string="{kind}">',),
            after=("</｜DSML｜parameter>\n",),
            close=("</｜DSML｜invoke>\n",),
            head=rf"<｜DSML｜invoke\s+name\s*=\s*[\"']?{_NAME}[\"']?\s*>",
            tag=(
                r"<｜DSML｜parameter\s+name\s*=\s*[\"']?(?P<key>[^\"'<>]+)[\"']?"
                r"(?:\s+string\s*=\s*\"(?P<kind>true|false)\")?[^<>]*>"
            ),
            half="(?!)",
            end="</｜DSML｜parameter>",
            over="</｜DSML｜invoke>",
            exact=True,
            begins=("<｜DSML｜invoke",),
        ),
        also=("<｜DSML｜tool_calls>",),
        ends=("</｜DSML｜tool_calls>",),
        bare=("<｜DSML｜invoke",),
        enforced=False,
        tokens=("｜DSML｜",),
    ),
    CallFormat(  # DeepSeek V3 and R1, and what was distilled from it
        style="deepseek_v3",
        **_DEEPSEEK_MARKS,
        body=_headed(
            *("<｜tool▁call▁begin｜>", "function", "<｜tool▁sep｜>", "{name}\n```json\n"),
            *(ARGUMENTS, "\n```", "<｜tool▁call▁end｜>"),
            head=_DEEPSEEK_HEAD,
            close=_DEEPSEEK_CLOSE,
            begins="<｜tool▁call▁begin｜>",
        ),
        template=("<｜tool▁calls▁begin｜>", "```json"),
    ),
    CallFormat(
        style="deepseek_v31",
        **_DEEPSEEK_MARKS,
        body=_headed(
            *(
                "<｜tool▁call▁begin｜>",
                "{name}",
                "<｜tool▁sep｜>",
                ARGUMENTS,
                "<｜tool▁call▁end｜>",
            ),
            head=_DEEPSEEK_HEAD,
            close=_DEEPSEEK_CLOSE,
            begins="<｜tool▁call▁begin｜>",
        ),
        template=("<｜tool▁calls▁begin｜>",),
    ),
    CallFormat(  # Command R7B, Command A
        style="command",
        start="<|START_ACTION|>",
        end="<|END_ACTION|>",
        body=Objects(keys=_TOOLS, is_list=True),
        template=("<|START_ACTION|>",),
    ),
    CallFormat(  # Command R, Command R+
        style="command_r",
        end="```",
        body=Objects(keys=_TOOLS, is_list=True, opening="Action: ```json\n"),
        also=("Action:",),
        template=("Action:", "```json", '"tool_name"'),
    ),
    CallFormat(
        style="apertus",
        start="<|tools_prefix|>",
        end="<|tools_suffix|>",
        body=Objects(keys=("", ""), is_list=True),
        others=(_ANY,),
        template=("<|tools_prefix|>",),
    ),
    CallFormat(
        style="seed",
        start="<seed:tool_call>",
        end="</seed:tool_call>",
        body=replace(
            _FUNCTION, key=("<parameter={key}>",), after=("</parameter>\n",), close=("</function>",)
        ),
        bare=("<function=",),
        paired=True,
        template=("<seed:tool_call>",),
    ),
    CallFormat(  # Hermes, and the many that write as it does
        style="json_tools",
        start="<tool_call>",
        end="</tool_call>",
        body=Objects(),
        others=(_FUNCTION,),
        also=_OBJECT_MARKS[1:],
        ends=_OBJECT_ENDS[1:],
        lines=("{", "["),
        alone=True,
        paired=True,
        template=("<tool_call>",),
    ),
    CallFormat(  # Phi-4-mini, which has two ways
        style="phi",
        start="<|tool_call|>",
        end="<|/tool_call|>",
        body=Objects(is_list=True),
        also=("functools", "<tool_call>"),
        ends=("</tool_call>",),
        tokens=("<|tool_call|>", "<|/tool_call|>"),
    ),
    CallFormat(  # Granite 3
        style="granite",
        start="<|tool_call|>",
        body=Objects(is_list=True),
        also=("<tool_call>",),
        ends=("</tool_call>", "<|/tool_call|>"),
        lines=("{", "["),
        alone=True,
        template=("<|tool_call|>",),
    ),
    CallFormat(  # Granite's 20B for function calling
        style="granite_20b",
        start="<function_call>",
        body=Objects(),
        ends=("</function_call>",),
        template=("<function_call>",),
    ),
    CallFormat(
        style="nemotron",
        start="<TOOLCALL>",
        end="</TOOLCALL>",
        body=Objects(is_list=True),
        also=("<tool_call>", "<tool_calls>"),
        ends=("</tool_call>", "</tool_calls>"),
        template=("<TOOLCALL>",),
    ),
    CallFormat(  # Jamba, Hunyuan, MiniMax M1, Apriel
        style="tool_calls",
        start="<tool_calls>",
        end="</tool_calls>",
        body=Objects(is_list=True),
        also=("<tool_call>",),
        ends=("</tool_call>",),
        template=("<tool_calls>",),
    ),
    CallFormat(
        style="internlm",
        start="<|action_start|><|plugin|>",
        end="<|action_end|>",
        body=Objects(keys=_PARAMETERS),
        also=("<|action_start|> <|plugin|>", "<|action_start|>\n<|plugin|>"),
        paired=True,
        tokens=("<|action_start|>", "<|plugin|>", "<|action_end|>"),
    ),
    CallFormat(
        style="olmo",
        start="<function_calls>",
        end="</function_calls>",
        body=replace(_PYTHON, around=("\n", "\n"), between="\n"),
        template=("<function_calls>",),
    ),
    CallFormat(  # Llama 3.2 and 4, if they are asked for Python
        style="llama_pythonic",
        body=_PYTHON,
        also=("<|python_start|>", "<|python_tag|>"),
        ends=("<|python_end|>",),
        bare=("[{name}(",),
        lines=("{", "["),
        template=("func_name1(",),
    ),
    CallFormat(  # Llama 3.1 and later
        style="llama_json",
        body=Objects(keys=_PARAMETERS),
        others=(_PYTHON,),
        also=("<|python_start|>", "<|python_tag|>"),
        ends=("<|python_end|>",),
        bare=("[{name}(",),
        lines=("{", "["),
        template=('"parameters": dictionary of argument name and its value',),
    ),
    # Those for which mlx-lm has a parser, which tells them.
    CallFormat(  # Mistral: a name and arguments, or a list of objects in older models
        style="mistral",
        start="[TOOL_CALLS]",
        body=Headed(
            pieces=("{name}", "[ARGS]", ARGUMENTS),
            between="[TOOL_CALLS]",
            head=rf"{_NAME}\s*(?:\[CALL_ID\]\s*(?P<id>[\w-]+)\s*)?(?:\[ARGS\]|(?=\{{))",
            again=("[TOOL_CALLS]", ","),
            begins=("{name}[ARGS]", "{name}{"),
        ),
        others=(Objects(is_list=True),),
    ),
    CallFormat(
        style="kimi_k2",
        start="<|tool_calls_section_begin|>",
        end="<|tool_calls_section_end|>",
        body=_headed(
            *("<|tool_call_begin|>", "functions.{name}:{index}", "<|tool_call_argument_begin|>"),
            *(ARGUMENTS, "<|tool_call_end|>"),
            head=(
                rf"<\|tool_call_begin\|>\s*(?P<id>{_NAME})\s*"
                r"(?:<\|tool_call_argument_begin\|>|(?=\{|<\|tool_call_end\|>))"
            ),
            close=("<|tool_call_end|>",),
            begins="<|tool_call_begin|>",
        ),
        also=("<|tool_call_section_begin|>",),
        ends=("<|tool_call_section_end|>",),
        bare=("<|tool_call_begin|>",),
    ),
    CallFormat(
        style="kimi_k3",
        start="<|open|>tools<|sep|>",
        end="<|close|>tools<|sep|>",
        body=Tagged(
            open=('<|open|>call tool="{name}" index="{index}"<|sep|>',),
            key=('<|open|>argument key="{key}" type="{kind}"<|sep|>',),
            after=("<|close|>argument<|sep|>",),
            close=("<|close|>call<|sep|>",),
            head=(
                rf"<\|open\|>call\s(?:(?:(?!<\|sep\|>)(?s:.))*\s)?tool=\"{_NAME}\""
                r"(?:(?!<\|sep\|>)(?s:.))*<\|sep\|>"
            ),
            tag=(
                r"<\|open\|>argument\s+key=\"(?P<key>[^\"]+)\"(?:\s+type=\"(?P<kind>\w+)\")?"
                r"(?:(?!<\|sep\|>)(?s:.))*<\|sep\|>"
            ),
            half="(?!)",
            end=r"<\|close\|>argument<\|sep\|>",
            over=r"<\|close\|>call<\|sep\|>",
            body=r"<\|open\|>json(?:(?!<\|sep\|>)(?s:.))*<\|sep\|>",
            body_end=("<|close|>json<|sep|>", "<|close|>call<|sep|>"),
            kinds=("string", "object"),
            exact=True,
            begins=("<|open|>call",),
        ),
        bare=("<|open|>call",),
        enforced=False,
    ),
    CallFormat(
        style="qwen3_coder",
        start="<tool_call>",
        end="</tool_call>",
        body=_FUNCTION,
        bare=("<function=",),
        paired=True,
    ),
    CallFormat(
        style="minimax_m2",
        start="<minimax:tool_call>",
        end="</minimax:tool_call>",
        body=Tagged(
            open=('<invoke name="{name}">\n',),
            key=('<parameter name="{key}">',),
            after=("</parameter>\n",),
            close=("</invoke>",),
            head=rf"<invoke\s+name\s*=\s*[\"']?{_NAME}[\"']?\s*>",
            tag=r"<parameter\s+name\s*=\s*[\"']?(?P<key>[^\"'<>]+)[\"']?\s*>",
            end="</parameter>",
            over="</invoke>",
            begins=("<invoke",),
        ),
        bare=("<invoke name=",),
        paired=True,
    ),
    CallFormat(
        style="minicpm5",
        body=Tagged(
            open=('<function name="{name}">',),
            key=('<param name="{key}">',),
            after=("</param>",),
            close=("</function>",),
            head=rf"<function\s*(?:name)?\s*=\s*[\"']?{_NAME}[\"']?(?:\s*>|(?=\s*<param|\s+\w+=))",
            tag=(
                r"<param\s*(?:name)?\s*=\s*[\"']?(?P<key>[^\"'<>]+)[\"']?\s*>"
                r"(?:\s*(?P<raw><!\[CDATA\[)|(?=\s*[^\s<]|\s*<[^!]))"
            ),
            end="</param>",
            over="</function>",
            begins=("<function",),
        ),
        bare=("<function name=", "<functionname=", "<function="),
        enforced=False,
    ),
    CallFormat(
        style="muse_spark",
        start="<atem:function_calls>",
        end="</atem:function_calls>",
        body=Tagged(
            open=('<atem:invoke name="{name}">\n',),
            key=('<atem:parameter name="{key}">',),
            after=("</atem:parameter>\n",),
            close=("</atem:invoke>",),
            head=rf"<atem:invoke\s(?:[^<>]*\s)?name=\"{_NAME}\"\s*>",
            tag=r"<atem:parameter\s(?:[^<>]*\s)?name=\"(?P<key>[^\"]+)\"[^<>]*>",
            end="</atem:parameter>",
            over="</atem:invoke>",
            begins=("<atem:invoke",),
        ),
        bare=("<atem:invoke",),
        enforced=False,
    ),
    CallFormat(
        style="glm47",
        start="<tool_call>",
        end="</tool_call>",
        body=_glm(""),
        others=(_FUNCTION,),
        paired=True,
    ),
    CallFormat(
        style="laguna",
        start="<tool_call>",
        end="</tool_call>",
        body=_glm(""),
        others=(_FUNCTION,),
        paired=True,
    ),
    CallFormat(
        style="longcat",
        start="<longcat_tool_call>",
        end="</longcat_tool_call>",
        body=_glm("longcat_"),
        paired=True,
        enforced=False,
    ),
    CallFormat(
        style="function_gemma",
        start="<start_function_call>",
        end="<end_function_call>",
        body=_gemma("<escape>"),
        bare=("call:{name}",),
        paired=True,
        enforced=False,
    ),
    CallFormat(
        style="gemma4",
        start="<|tool_call>",
        end="<tool_call|>",
        body=_gemma('<|"|>'),
        bare=("call:",),
        enforced=False,
        paired=True,
    ),
    CallFormat(  # LFM2
        style="pythonic",
        start="<|tool_call_start|>",
        end="<|tool_call_end|>",
        body=_PYTHON,
        bare=("[{name}(",),
    ),
)

FORMATS: Mapping[str, CallFormat] = {format.style: format for format in _FORMATS}
"""All formats, by their names."""
