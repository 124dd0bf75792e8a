"""The formats of calls, one record each: what its makers publish, and how models deviate from it.

A record says everything about a format: the reader, the writer and the grammar are made from it. A
new family is a new record here, and a few golden answers in ``tests/data/golden.jsonl``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import Any

from .styles import (
    HARMONY,
    KIMI_K2,
    KIMI_K3,
    LISTED,
    MINICPM,
    MISTRAL,
    OBJECTS,
    PYTHONIC,
    TEXT,
    Pieces,
    Style,
    any_of,
    deepseek,
    function,
    gemma,
    glm,
    invoke,
    nested,
    objects,
)

_LINES = ("{", "[", "```")  # how JSON begins, perhaps in a fence


@dataclass(frozen=True)
class CallFormat:
    """How a model writes calls, and how its template and its added tokens show that.

    - ``style``: the name of the format: that of mlx-lm's parser, if there is one.
    - ``start``, ``end``: the marks around calls; "": there is none, or a header takes its place.
    - ``body``: the published style of the text between them; ``others``: styles that models also
      write there.
    - ``also``, ``ends``: other marks that begin and end calls; ``borders``: other marks that may
      follow a call.
    - ``bare``: how a call begins without any mark, anywhere in the answer; ``{name}`` stands for
      the names of tools. ``lines``: the same at the beginning of a line; ``alone``: such a line is
      a call only if nothing, or just the ``end``, follows it.
    - ``paired``: every call has its own marks; ``space`` follows the first and precedes the second;
      ``enforced``: a grammar of the format can be made.
    - ``thought``: what may come before a call, with any ``TEXT``; such a call ends the answer.
    - ``template``, ``tokens``: texts that must all be in the chat template, and in the vocabulary.
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

    @cached_property
    def starts(self) -> Pieces:
        """All marks that begin calls."""
        return tuple(dict.fromkeys(filter(None, (self.start, *self.also))))

    @cached_property
    def all_ends(self) -> Pieces:
        """All marks that end calls."""
        return tuple(dict.fromkeys(filter(None, (self.end, *self.ends))))

    @cached_property
    def styles(self) -> tuple[Style, ...]:
        """All styles that may stand between the marks, the published one first."""
        return (self.body, *self.others, *(() if self.body.spaced else (OBJECTS,)))

    @cached_property
    def begins(self) -> Pieces:
        """How calls between the marks may begin."""
        return tuple(text for style in self.styles for text in style.begins)

    @cached_property
    def patterns(self) -> tuple[str, str, str]:
        """Patterns of all start marks, of all ends of calls, and of beginnings between marks."""
        begins = (text for text in self.begins if len(text) > 1 and "{name}" not in text)
        return any_of(self.starts), any_of((*self.all_ends, *self.borders)), any_of(begins)

    @property
    def announced(self) -> bool:
        """Whether calls can be enforced from their start mark on."""
        return bool(self.start) and self.enforced

    def write(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """Calls as the model itself writes them, with their marks."""
        groups = [[call] for call in calls] if self.paired else [calls]
        inner = [f"{self.space}{self.body.write(group)}{self.space}" for group in groups]
        return "\n".join(f"{self.start}{text}{self.end}" for text in inner)

    @classmethod
    def of(cls, tokenizer: Any, template: str, tokens: Collection[str]) -> CallFormat | None:
        """The format of a model: as mlx-lm knows it, or else as its ``template`` and its added
        ``tokens`` show it. None if neither does."""
        style = ""
        if tokenizer.has_tool_calling and tokenizer.tool_parser is not None:
            style = tokenizer.tool_parser.__module__.rpartition(".")[2]
            if style in FORMATS and style != "json_tools":  # which mlx-lm takes many formats for
                return FORMATS[style]
        for format in FORMATS.values():
            texts = all(text in template for text in format.template)
            if (format.template or format.tokens) and texts and set(format.tokens) <= {*tokens}:
                return format
        return FORMATS.get(style)


_MARKS: Mapping[str, Any] = {  # of objects; models confuse them
    "also": (
        *("<tool_call>", "<tool_calls>", "<TOOLCALL>", "<function_call>", "<|tool_call|>"),
        *("<tools>", "<tool>"),  # the marks around tools in their templates
    ),
    "ends": (
        *("</tool_call>", "</tool_calls>", "</TOOLCALL>", "</function_call>", "<|/tool_call|>"),
        *("</tools>", "</tool>"),
    ),
}
_HERMES: Mapping[str, Any] = {  # many models saw these marks more often than their own
    "also": ("<tool_call>",),
    "ends": ("</tool_call>",),
}
_WRAPS: Mapping[str, Any] = {  # marks that other models put around all calls
    "also": ("<tool_calls>", "<function_calls>", "<function_call>"),
    "ends": ("</tool_calls>", "</function_calls>", "</function_call>"),
}
_GLM_BARE = ("{name}<arg_key>", "{name}\n<arg_key>", "<function=")
_FUNCTION = function("\n")
_DEEPSEEK: Mapping[str, Any] = {
    "also": (
        *("<｜tool_calls_begin｜>", "<｜tool calls begin｜>", r"<｜tool\_calls\_begin｜>"),
        "<tool_call>",
    ),
    "ends": ("</tool_call>",),
    "bare": ("<｜tool▁call▁begin｜>", "function<｜tool▁sep｜>"),
}
_LLAMA: Mapping[str, Any] = {
    "also": ("<|python_start|>", "<|python_tag|>", "<tool_call>"),
    "ends": ("<|python_end|>", "</tool_call>"),
    "bare": ("[{name}(",),
    "alone": False,
}

_FORMATS = (
    CallFormat(  # gpt-oss
        *("harmony", "", "", HARMONY),
        borders=("<|call|>", "<|end|>", "<|start|>", "<|channel|>"),
        thought=(
            *("<|channel|>", "analysis", "<|message|>", TEXT, "<|end|>", "<|start|>", "assistant"),
        ),
        lines=(),
        tokens=("<|channel|>", "<|message|>", "<|call|>"),
    ),
    CallFormat(  # DeepSeek V3.2 and later
        *("dsml", "<｜DSML｜function_calls>", "</｜DSML｜function_calls>"),
        invoke("｜DSML｜", ' string="{kind}"'),
        also=("<｜DSML｜tool_calls>", "<｜DSML｜ calls>"),
        ends=("</｜DSML｜tool_calls>", "</｜DSML｜ calls>"),
        bare=("<｜DSML｜invoke", "<｜DSML｜ invoke"),
        enforced=False,
        tokens=("｜DSML｜",),
        space="\n",
    ),
    CallFormat(  # DeepSeek V3 and R1, and its distillations
        *("deepseek_v3", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        deepseek(("function", "<｜tool▁sep｜>", "{name}\n```json\n"), ("\n```",)),
        **_DEEPSEEK,
        template=("<｜tool▁calls▁begin｜>", "```json"),
    ),
    CallFormat(
        *("deepseek_v31", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        deepseek(("{name}", "<｜tool▁sep｜>")),
        **_DEEPSEEK,
        template=("<｜tool▁calls▁begin｜>",),
    ),
    CallFormat(  # Command R7B, Command A
        *(
            "command",
            "<|START_ACTION|>",
            "<|END_ACTION|>",
            objects("tool_name", "parameters", listed=True),
        ),
        template=("<|START_ACTION|>",),
    ),
    CallFormat(  # Command R, Command R+
        *("command_r", "", "```"),
        objects("tool_name", "parameters", listed=True, opening="Action: ```json\n"),
        also=("Action: ```json", "Action:"),
        template=("Action:", "```json", '"tool_name"'),
    ),
    CallFormat(
        *("apertus", "<|tools_prefix|>", "<|tools_suffix|>", objects("", "", listed=True)),
        others=(OBJECTS,),
        template=("<|tools_prefix|>",),
    ),
    CallFormat(
        *("seed", "<seed:tool_call>", "</seed:tool_call>", function("")),
        **_HERMES,
        bare=("<function=",),
        paired=True,
        template=("<seed:tool_call>",),
        space="\n",
    ),
    CallFormat(
        *("minimax_m3", "]<]minimax[>[<tool_call>\n", "]<]minimax[>[</tool_call>"),
        nested("]<]minimax[>["),
        also=("]<]minimax[>[<tool_call>",),
        bare=("]<]minimax[>[<invoke",),
        enforced=False,
        template=("]<]minimax[>[",),
    ),
    CallFormat(  # Hermes, and the many models that write like it
        *("json_tools", "<tool_call>", "</tool_call>", OBJECTS),
        others=(_FUNCTION, MINICPM, glm(""), PYTHONIC, invoke("")),
        **_MARKS,
        bare=("<function=", "<function name="),
        paired=True,
        template=("<tool_call>",),
        space="\n",
    ),
    CallFormat(  # Phi-4-mini, which has two ways
        *("phi", "<|tool_call|>", "<|/tool_call|>", LISTED),
        also=("functools", *_MARKS["also"]),
        ends=_MARKS["ends"],
        tokens=("<|tool_call|>", "<|/tool_call|>"),
    ),
    CallFormat(  # Granite 3
        *("granite", "<|tool_call|>", "", LISTED),
        **_MARKS,
        template=("<|tool_call|>",),
    ),
    CallFormat(  # Granite's 20B for function calling
        *("granite_20b", "<function_call>", "", OBJECTS),
        **_MARKS,
        template=("<function_call>",),
    ),
    CallFormat(
        *("nemotron", "<TOOLCALL>", "</TOOLCALL>", LISTED),
        **_MARKS,
        template=("<TOOLCALL>",),
    ),
    CallFormat(  # Jamba, Hunyuan, MiniMax M1, Apriel
        *("tool_calls", "<tool_calls>", "</tool_calls>", LISTED),
        **_MARKS,
        template=("<tool_calls>",),
    ),
    CallFormat(
        *(
            "internlm",
            "<|action_start|><|plugin|>",
            "<|action_end|>",
            objects("name", "parameters"),
        ),
        also=("<|action_start|> <|plugin|>", "<|action_start|>\n<|plugin|>"),
        paired=True,
        tokens=("<|action_start|>", "<|plugin|>", "<|action_end|>"),
    ),
    CallFormat(
        *("olmo", "<function_calls>", "</function_calls>"),
        replace(PYTHONIC, around=("\n", "\n"), between="\n"),
        lines=(*_LINES, "{name}("),
        template=("<function_calls>",),
    ),
    CallFormat(  # Llama 3.2 and 4, if they are asked for Python
        *("llama_pythonic", "", "", PYTHONIC), **_LLAMA, template=("func_name1(",)
    ),
    CallFormat(  # Llama 3.1 and later
        *("llama_json", "", "", objects("name", "parameters")),
        others=(PYTHONIC, _FUNCTION),
        **{**_LLAMA, "bare": (*_LLAMA["bare"], "<function=")},
        template=('"parameters": dictionary of argument name and its value',),
    ),
    CallFormat(  # GigaChat 3 and 3.1
        *("gigachat", "<|message_sep|>\n\nfunction call<|role_sep|>\n", "", OBJECTS),
        also=("function call<|role_sep|>", "<|function_call|>"),
        ends=("<|message_sep|>",),
        paired=True,
        template=("'function call'", "<|role_sep|>"),
    ),
    CallFormat(
        *("gigachat31", "<|function_call|>", "", OBJECTS),
        also=("<|message_sep|>\n\nfunction call<|role_sep|>", "function call<|role_sep|>"),
        ends=("<|message_sep|>",),
        paired=True,
        template=("<|function_call|>", "<|role_sep|>"),
    ),
    CallFormat(
        *("xlam", "", "", LISTED),
        also=("[TOOL_CALLS]", *_HERMES["also"]),
        ends=_HERMES["ends"],
        alone=False,
        template=('[{"name": "tool_call_name", "arguments": ',),
    ),
    # mlx-lm's parser identifies the formats from here on:
    CallFormat(  # a name and arguments, or a list of objects in older models
        *("mistral", "[TOOL_CALLS]", "", MISTRAL),
        others=(LISTED,),
        **_HERMES,
        bare=("{name}[ARGS]", "{name}[TOOL_CALLS]{", "{name}[TOOL_CALLS][ARGS]"),
    ),
    CallFormat(
        *("kimi_k2", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", KIMI_K2),
        also=("<|tool_call_section_begin|>", "<tool_call>"),
        ends=("<|tool_call_section_end|>", "</tool_call>"),
        bare=("<|tool_call_begin|>",),
    ),
    CallFormat(
        *("kimi_k3", "<|open|>tools<|sep|>", "<|close|>tools<|sep|>", KIMI_K3),
        also=("<|open|><|open|>tools<|sep|>", "<|open|>tools"),
        bare=("<|open|>call",),
        enforced=False,
    ),
    CallFormat(
        *("qwen3_coder", "<tool_call>", "</tool_call>", _FUNCTION),
        **_WRAPS,
        bare=("<function=", "<function name="),
        paired=True,
        space="\n",
    ),
    CallFormat(
        *("minimax_m2", "<minimax:tool_call>", "</minimax:tool_call>", invoke("")),
        also=(*_HERMES["also"], *_WRAPS["also"]),
        ends=(*_HERMES["ends"], *_WRAPS["ends"]),
        bare=("<invoke name=",),
        paired=True,
        space="\n",
    ),
    CallFormat(
        *("minicpm5", "", "", MINICPM),
        bare=("<function name=", "<functionname=", "<function="),
        enforced=False,
    ),
    CallFormat(
        *("muse_spark", "<atem:function_calls>", "</atem:function_calls>"),
        invoke("atem:"),
        bare=("<atem:invoke",),
        enforced=False,
        space="\n",
    ),
    CallFormat(
        *("glm47", "<tool_call>", "</tool_call>", glm("")),
        others=(_FUNCTION,),
        **_WRAPS,
        bare=_GLM_BARE,
        paired=True,
    ),
    CallFormat(
        *("longcat", "<longcat_tool_call>", "</longcat_tool_call>", glm("longcat_")),
        **_HERMES,
        bare=("{name}<longcat_arg_key>", "{name}\n<longcat_arg_key>"),
        paired=True,
        enforced=False,
    ),
    CallFormat(
        *("function_gemma", "<start_function_call>", "<end_function_call>", gemma("<escape>")),
        bare=("call:{name}",),
        paired=True,
        enforced=False,
    ),
    CallFormat(
        *("gemma4", "<|tool_call>", "<tool_call|>", gemma('<|"|>')),
        also=("<|tool_call>:", "<call>"),
        ends=("<turn|>",),
        bare=("call:",),
        paired=True,
        enforced=False,
    ),
    CallFormat(  # LFM2
        *("pythonic", "<|tool_call_start|>", "<|tool_call_end|>", PYTHONIC),
        **_HERMES,
        bare=("[{name}(",),
        lines=(*_LINES, "{name}("),
    ),
)

FORMATS: Mapping[str, CallFormat] = {format.style: format for format in _FORMATS} | {
    "laguna": next(format for format in _FORMATS if format.style == "glm47")
}
"""All formats by name."""
