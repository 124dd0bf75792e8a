"""Model families that mlx-lm has no parser for: how they write, and small templates after theirs.

The templates are written anew, as short as what they are to show allows: which marks a maker's
template writes, and whether it takes the arguments of a call as an object or as text.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper, _infer_tool_parser
from tokenizers import AddedToken

from mlxgen.chat.dialect import Dialect
from mlxgen.tokens import Vocabulary
from tests.fakes import byte_level_tokenizer

Write = Callable[[str, dict[str, Any]], str]


@dataclass(frozen=True)
class Maker:
    """A family: its template, its added ``tokens``, and how it writes.

    Calls are each written by ``call``, with ``around`` them all and ``between`` them (None: there
    is one call in an answer). ``thinks`` surrounds thoughts and comes before text and calls.
    ``text`` surrounds text. ``past`` is how the template writes a call and its result, and
    ``leads`` whether text may come before a call.
    """

    template: str
    tokens: tuple[str, ...]
    call: Write
    around: tuple[str, str] = ("", "")
    between: str | None = None
    thinks: tuple[str, str] | None = None
    text: tuple[str, str] = ("", "")
    past: str = ""
    leads: bool = True
    enforced: bool = True

    def written(self, *calls: tuple[str, dict[str, Any]], thought: str = "", text: str = "") -> str:
        """An answer with calls of these functions."""
        parts = []
        if thought:
            assert self.thinks is not None
            parts.append(self.thinks[0] + thought + self.thinks[1])
        if text:
            parts.append(self.text[0] + text + self.text[1])
        if calls:
            inner = (self.between or "").join(self.call(*call) for call in calls)
            parts.append(self.around[0] + inner + self.around[1])
        return "".join(parts)


def objects(before: str, between: str, after: str) -> Write:
    return lambda name, arguments: f"{before}{name}{between}{json.dumps(arguments)}{after}"


def python(name: str, arguments: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def dsml(name: str, arguments: dict[str, Any]) -> str:
    parts = [f'<｜DSML｜invoke name="{name}">\n']
    for key, value in arguments.items():
        is_text = isinstance(value, str)
        written = value if is_text else json.dumps(value)
        parts.append(
            f'<｜DSML｜parameter name="{key}" string="{str(is_text).lower()}">{written}'
            "</｜DSML｜parameter>\n"
        )
    return "".join([*parts, "</｜DSML｜invoke>"])


NAMED = objects('{"name": "', '", "arguments": ', "}")
CHATML = ("<|im_start|>", "<|im_end|>")
THINK = ("<think>", "</think>")


def chat(calls: str, *, before: str = "", thinking: str = "", tool: str = "{{ m.content }}") -> str:
    """A template that has each message between marks, and the calls of one by ``calls``."""
    return (
        f"{before}{{%- for m in messages %}}{{{{- '<|im_start|>' ~ m.role ~ '\\n' }}}}"
        f"{{%- if m.tool_calls %}}{{{{- m.content or '' }}}}{calls}"
        f"{{%- elif m.role == 'tool' %}}{{{{- '' }}}}{tool}"
        "{%- else %}{{- m.content }}{%- endif %}{{- '<|im_end|>\\n' }}{%- endfor %}"
        f"{{%- if add_generation_prompt %}}{{{{- '<|im_start|>assistant\\n{thinking}' }}}}"
        "{%- endif %}"
    )


def each(inner: str, around: tuple[str, str] = ("", ""), between: str = "") -> str:
    """The calls ``c`` of a message, one after the other."""
    return (
        f"{{{{- '{around[0]}' }}}}{{%- for call in m.tool_calls %}}{{%- set c = call.function %}}"
        f"{inner}{{%- if not loop.last %}}{{{{- '{between}' }}}}{{%- endif %}}{{%- endfor %}}"
        f"{{{{- '{around[1]}' }}}}"
    )


LISTED = "{{- m.tool_calls | map(attribute='function') | list | tojson }}"
HARMONY = """\
{%- if tools %}{{- '<|start|>developer<|message|># Tools\\n' }}
  {%- for tool in tools %}{{- 'type ' ~ tool.function.name ~ '\\n' }}{%- endfor %}{{- '<|end|>' }}
{%- endif %}
{%- set ns = namespace(called='') %}
{%- for m in messages %}
  {%- if m.role == 'assistant' and m.tool_calls %}
    {%- if m.content and m.thinking %}{{- raise_exception('content or thinking') }}{%- endif %}
    {%- if m.content or m.thinking %}
      {{- '<|start|>assistant<|channel|>analysis<|message|>' + (m.content or m.thinking) }}
      {{- '<|end|>' }}
    {%- endif %}
    {%- set ns.called = m.tool_calls[0].function.name %}
    {{- '<|start|>assistant to=functions.' + ns.called + '<|channel|>commentary json<|message|>' }}
    {{- m.tool_calls[0].function.arguments | tojson }}{{- '<|call|>' }}
  {%- elif m.role == 'assistant' %}
    {{- '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' }}
  {%- elif m.role == 'tool' %}
    {{- '<|start|>functions.' + ns.called + ' to=assistant<|channel|>commentary<|message|>' }}
    {{- m.content | tojson }}{{- '<|end|>' }}
  {%- else %}
    {{- '<|start|>' ~ m.role ~ '<|message|>' ~ m.content ~ '<|end|>' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}"""
DEEPSEEK_V3 = """\
{{- '<｜begin｜>' }}
{%- for m in messages %}
  {%- if m['role'] == 'user' %}{{- '<｜User｜>' + m['content'] }}{%- endif %}
  {%- if m['role'] == 'assistant' and m['content'] is none %}
    {{- '<｜Assistant｜><｜tool▁calls▁begin｜>' }}
    {%- for tool in m['tool_calls'] %}
      {{- '<｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + tool['function']['name'] }}
      {{- '\\n```json\\n' + tool['function']['arguments'] + '\\n```<｜tool▁call▁end｜>' }}
    {%- endfor %}
    {{- '<｜tool▁calls▁end｜>' }}
  {%- endif %}
  {%- if m['role'] == 'assistant' and m['content'] is not none %}
    {{- '<｜Assistant｜>' + m['content'].split('</think>')[-1] }}
  {%- endif %}
  {%- if m['role'] == 'tool' %}
    {{- '<｜tool▁output▁begin｜>' + m['content'] + '<｜tool▁output▁end｜>' }}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<｜Assistant｜><think>\\n' }}{%- endif %}"""
DEEPSEEK_V31 = chat(
    each(
        "{{- '<｜tool▁call▁begin｜>' + c.name + '<｜tool▁sep｜>' + c.arguments }}"
        "{{- '<｜tool▁call▁end｜>' }}",
        ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    ),
    thinking="</think>",
)
DEEPSEEK = (
    *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>"),
    *("<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "<｜User｜>", "<｜Assistant｜>", *THINK),
)
COHERE = (
    *("<|START_ACTION|>", "<|END_ACTION|>", "<|START_THINKING|>", "<|END_THINKING|>"),
    *("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
)
LLAMA = """\
{%- for m in messages %}
  {%- if tools and loop.first %}
    {{- 'Use {"name": function name, "parameters": dictionary of argument name and its value}.' }}
  {%- endif %}
  {%- if 'tool_calls' in m %}
    {%- if m.tool_calls | length > 1 %}{{- raise_exception('one call at once') }}{%- endif %}
    {%- set c = m.tool_calls[0].function %}
    {{- '{"name": "' + c.name + '", "parameters": ' }}{{- c.arguments | tojson }}{{- '}' }}
  {%- else %}{{- m.role ~ ': ' ~ m.content }}{%- endif %}{{- '<|im_end|>' }}
{%- endfor %}{{- 'assistant: ' }}"""
PHI = """\
{%- for m in messages %}{{- '<|im_start|>' + m['role'] + m['content'] }}
  {%- if m['role'] == 'system' and 'tools' in m and m['tools'] is not none %}
    {{- '<|tool|>' + m['tools'] + '<|/tool|>' }}
  {%- endif %}{{- '<|im_end|>' }}
{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant' }}{%- endif %}"""
HERMES_CALL = "{{- '<tool_call>\\n' }}{{- c | tojson }}{{- '\\n</tool_call>' }}"
ASKED_FOR_PYTHON = "{{- 'Use [func_name1(name=value), func_name2(name=value)].\\n' }}"
GET_PAST = '{"name": "get", "arguments": {"city": "Oslo"}}'

MAKERS = {
    "gpt-oss": Maker(
        HARMONY,
        (
            *("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>", "<|constrain|>"),
            "<|return|>",
        ),
        objects(
            "<|start|>assistant<|channel|>commentary to=functions.",
            " <|constrain|>json<|message|>",
            "",
        ),
        ("", "<|call|>"),
        "<|call|>",
        thinks=("<|channel|>analysis<|message|>", "<|end|>"),
        text=("<|start|>assistant<|channel|>commentary<|message|>", "<|end|>"),
        past=(
            '<|start|>assistant to=functions.get<|channel|>commentary json<|message|>{"city": '
            '"Oslo"}<|call|><|start|>functions.get to=assistant<|channel|>commentary<|message|>'
            '"cold"<|end|>'
        ),
    ),
    "gpt-oss, recipient first": Maker(
        HARMONY,
        ("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>", "<|constrain|>"),
        objects("<|start|>assistant to=functions.", "<|channel|>commentary json<|message|>", ""),
        ("", "<|call|>"),
        "<|call|>",
        thinks=("<|channel|>analysis<|message|>", "<|end|>"),
        text=("<|start|>assistant<|channel|>final<|message|>", "<|end|>"),
    ),
    "DeepSeek V3 and R1": Maker(
        DEEPSEEK_V3,
        DEEPSEEK,
        objects(
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n", "\n```<｜tool▁call▁end｜>"
        ),
        ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        "\n",
        ("", "</think>\n\n"),
        past=(
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get\n```json\n"
            '{"city": "Oslo"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
            "<｜tool▁output▁begin｜>cold"
        ),
    ),
    "DeepSeek V3.1": Maker(
        DEEPSEEK_V31,
        (*DEEPSEEK, *CHATML),
        objects("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
        ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        "",
        past=(
            '<｜tool▁call▁begin｜>get<｜tool▁sep｜>{"city": "Oslo"}<｜tool▁call▁end｜>'
            "<｜tool▁calls▁end｜>"
        ),
    ),
    "DeepSeek V3.2": Maker(
        chat(each("{{- c | tojson }}")),
        ("｜DSML｜", *THINK, *CHATML),
        dsml,
        ("<｜DSML｜function_calls>\n", "\n</｜DSML｜function_calls>"),
        "\n",
        ("<think>", "</think>"),
        enforced=False,
    ),
    "Command R7B and A": Maker(
        chat(
            each(
                '{{- \'{"tool_name": "\' ~ c.name ~ \'", "parameters": \' ~ (c.arguments|tojson) }}'
                "{{- '}' }}",
                ("<|START_ACTION|>[", "]<|END_ACTION|>"),
                ", ",
            )
        ),
        (*COHERE, *CHATML),
        objects('    {"tool_call_id": "0", "tool_name": "', '", "parameters": ', "}"),
        ("<|START_ACTION|>[\n", "\n]<|END_ACTION|>"),
        ",\n",
        ("<|START_THINKING|>", "<|END_THINKING|>"),
        ("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        past='[{"tool_name": "get", "parameters": {"city": "Oslo"}}]<|END_ACTION|>',
    ),
    "Command R and R+": Maker(
        chat(
            each(
                '{{- \'{\\n"tool_name": "\' ~ c.name ~ \'",\\n"parameters": \' }}'
                "{{- c.arguments|tojson }}{{- '\\n}' }}",
                ("\\nAction:\\n```json\\n[", "]```\\n"),
                ",",
            )
        ),
        CHATML,
        objects('    {\n        "tool_name": "', '",\n        "parameters": ', "\n    }"),
        ("Action: ```json\n[\n", "\n]```"),
        ",\n",
        past='Action:\n```json\n[{\n"tool_name": "get",\n"parameters": {"city": "Oslo"}\n}]```',
    ),
    "Apertus": Maker(
        chat(
            each(
                "{{- '{\"' + c.name + '\": ' + c.arguments + '}' }}",
                ("<|tools_prefix|>[", "]<|tools_suffix|>"),
                ", ",
            )
        ),
        ("<|tools_prefix|>", "<|tools_suffix|>", "<|inner_prefix|>", "<|inner_suffix|>", *CHATML),
        objects('{"', '": ', "}"),
        ("<|tools_prefix|>[", "]<|tools_suffix|>"),
        ", ",
        ("<|inner_prefix|>", "<|inner_suffix|>"),
        past='<|tools_prefix|>[{"get": {"city": "Oslo"}}]<|tools_suffix|>',
    ),
    "Seed-OSS": Maker(
        chat(
            each(
                "{{- '<seed:tool_call>\\n<function=' ~ c.name ~ '>\\n' }}"
                "{%- for k, v in c.arguments.items() %}"
                "{{- '<parameter=' ~ k ~ '>' ~ v ~ '</parameter>\\n' }}{%- endfor %}"
                "{{- '</function>\\n</seed:tool_call>' }}"
            )
        ),
        ("<seed:tool_call>", "</seed:tool_call>", "<seed:think>", "</seed:think>", *CHATML),
        lambda name, arguments: (
            f"<seed:tool_call>\n<function={name}>\n"
            + "".join(
                f"<parameter={key}>{v if isinstance(v, str) else json.dumps(v)}</parameter>\n"
                for key, v in arguments.items()
            )
            + "</function>\n</seed:tool_call>"
        ),
        between="\n",
        thinks=("<seed:think>", "</seed:think>"),
        past="<function=get>\n<parameter=city>Oslo</parameter>\n</function>",
    ),
    "Hermes": Maker(
        chat(each(HERMES_CALL)),
        (*THINK, *CHATML),
        lambda name, arguments: f"<tool_call>\n{NAMED(name, arguments)}\n</tool_call>",
        between="\n",
        thinks=THINK,
        past="<tool_call>\n" + GET_PAST + "\n</tool_call>",
    ),
    "Phi-4-mini": Maker(
        chat("{{- '<|tool_call|>' }}" + LISTED + "{{- '<|/tool_call|>' }}"),
        ("<|tool_call|>", "<|/tool_call|>", *CHATML),
        objects('{"type": "function", "function": {"name": "', '", "arguments": ', "}}"),
        ("<|tool_call|>[", "]<|/tool_call|>"),
        ", ",
        past=f"<|tool_call|>[{GET_PAST}]<|/tool_call|>",
    ),
    "Phi-4-mini, tools in a message": Maker(
        PHI,
        ("<|tool|>", "<|/tool|>", "<|tool_call|>", "<|/tool_call|>", *CHATML),
        NAMED,
        ("<|tool_call|>[", "]<|/tool_call|>"),
        ", ",
        past=f"<|tool_call|>[{GET_PAST}]<|/tool_call|><|im_end|><|im_start|>toolcold",
    ),
    "Phi-4-mini, functools": Maker(
        chat("{{- 'functools' }}" + LISTED),
        ("<|tool_call|>", "<|/tool_call|>", *CHATML),
        NAMED,
        ("functools[", "]"),
        ", ",
    ),
    "Granite 3": Maker(
        chat("{{- '<|tool_call|>' }}" + LISTED),
        ("<|tool_call|>", *CHATML),
        NAMED,
        ("<|tool_call|>[", "]"),
        ", ",
        past=f"<|tool_call|>[{GET_PAST}]",
    ),
    "Granite 20B": Maker(
        chat(each("{{- '<function_call> ' }}{{- c | tojson }}")),
        CHATML,
        NAMED,
        ("<function_call> ", ""),
        past=f"<function_call> {GET_PAST}",
    ),
    "Nemotron": Maker(
        chat("{{- '<TOOLCALL>' }}" + LISTED + "{{- '</TOOLCALL>' }}", thinking="<think>\\n"),
        (*CHATML, *THINK),
        NAMED,
        ("<TOOLCALL>[", "]</TOOLCALL>"),
        ", ",
        ("", "</think>\n\n"),
        past=f"<TOOLCALL>[{GET_PAST}]</TOOLCALL>",
    ),
    "Jamba and Hunyuan": Maker(
        chat("{{- '<tool_calls>' }}" + LISTED + "{{- '</tool_calls>' }}"),
        CHATML,
        NAMED,
        ("<tool_calls>[\n  ", "\n]</tool_calls>"),
        ",\n  ",
        past=f"<tool_calls>[{GET_PAST}]</tool_calls>",
    ),
    "InternLM": Maker(
        chat(
            each(
                "{{- '<|action_start|><|plugin|>\\n' ~ {'name': c.name, 'parameters': c.arguments} "
                "| tojson ~ '<|action_end|>' }}"
            )
        ),
        ("<|action_start|>", "<|plugin|>", "<|action_end|>", *CHATML),
        objects('{"name": "', '", "parameters": ', "}"),
        ("<|action_start|><|plugin|>\n", "<|action_end|>"),
    ),
    "OLMo 3": Maker(
        chat(
            each(
                "{{- c.name ~ '(' }}{%- for k, v in c.arguments.items() %}"
                "{{- k ~ '=' ~ (v | tojson) }}{%- endfor %}{{- ')' }}",
                ("<function_calls>\\n", "\\n</function_calls>"),
                "\\n",
            ),
            thinking="<think>",
        ),
        CHATML,
        python,
        ("<function_calls>\n", "\n</function_calls>"),
        "\n",
        past='<function_calls>\nget(city="Oslo")\n</function_calls>',
    ),
    "Llama 3.2 and 4, Python": Maker(
        chat(
            each(
                "{{- c.name + '(' }}{%- for k in c.arguments %}{{- k + '=' }}"
                "{{- '\"%s\"' | format(c.arguments[k]) }}{%- endfor %}{{- ')' }}",
                ("[", "]"),
                ", ",
            ),
            before=ASKED_FOR_PYTHON,
        ),
        ("<|python_start|>", "<|python_end|>", *CHATML),
        python,
        ("[", "]"),
        ", ",
        past='[get(city="Oslo")]',
        leads=False,
    ),
    "Llama 4, Python between marks": Maker(
        chat("", before=ASKED_FOR_PYTHON),
        ("<|python_start|>", "<|python_end|>", *CHATML),
        python,
        ("<|python_start|>[", "]<|python_end|>"),
        ", ",
    ),
    "Llama 3.1": Maker(
        LLAMA,
        ("<|python_tag|>", *CHATML),
        objects('{"name": "', '", "parameters": ', "}"),
        past='{"name": "get", "parameters": {"city": "Oslo"}}',
        leads=False,
    ),
    "Llama 3.1, after its mark": Maker(
        LLAMA,
        ("<|python_tag|>", *CHATML),
        objects('{"type": "function", "name": "', '", "parameters": ', "}"),
        ("<|python_tag|>", ""),
        "; ",
    ),
}


@cache
def vocabulary_of(name: str) -> Vocabulary:
    """Tokens of bytes and of a family's marks, with its template."""
    maker, tokenizer = MAKERS[name], byte_level_tokenizer()._tokenizer
    backend = tokenizer.backend_tokenizer
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in maker.tokens])
    tokenizer.chat_template = maker.template
    assert _infer_tool_parser(tokenizer) is None, "mlx-lm has a parser for it"
    return Vocabulary.of(TokenizerWrapper(tokenizer))


@cache
def dialect_of(name: str) -> Dialect:
    return Dialect.of(vocabulary_of(name))
