"""Chat formats of well-known families over tiny tokenizers."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from tokenizers import AddedToken

from mlxgen import Vocabulary
from tests.fakes import byte_level_tokenizer, sentencepiece_tokenizer
from tests.fakes.tokenizers import metaspace_tokenizer

QWEN = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools>\\nUse <tool_call></tool_call>.<|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=messages|length - 1, asks=true) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.asks and message.role == "user" and message.content is string and
           not (message.content.startswith('<tool_response>')
                and message.content.endswith('</tool_response>')) %}
        {%- set ns.asks = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1] %}
            {%- set reasoning = reasoning.lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (loop.last or reasoning) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning.strip('\\n') }}
            {{- '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- if (loop.first and content) or not loop.first %}{{- '\\n' }}{%- endif %}
            {%- set call = call.function if call.function else call %}
            {{- '<tool_call>\\n{"name": "' }}{{- call.name }}{{- '", "arguments": ' }}
            {%- if call.arguments is string %}{{- call.arguments }}
            {%- else %}{{- call.arguments | tojson }}{%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or messages[loop.index0 - 1].role != "tool" %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}{{- content }}{{- '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != "tool" %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""

LLAMA = """\
{{- bos_token }}
{%- if not date_string is defined %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{%- for message in messages %}
    {%- if 'tool_calls' in message %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
        {{- '{"name": "' ~ message.tool_calls[0].function.name ~ '", "parameters": ' }}
        {{- message.tool_calls[0].function.arguments | tojson ~ '}' }}{{- "<|eot_id|>" }}
    {%- else %}
        {%- set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'
                          + message['content'] | trim + '<|eot_id|>' %}
        {%- if loop.first %}{{- "Today is " ~ date_string ~ "\\n" }}{%- endif %}
        {{- content }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}"""

GEMMA = """\
{{ bos_token }}
{%- macro turn(role, text) -%}
<start_of_turn>{{ role }}
{{ text | trim }}<end_of_turn>
{% endmacro -%}
{%- for message in messages -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{ turn(role, message['content'] or '') }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""

MISTRAL = """\
{%- if messages[0]["role"] == "system" %}
    {%- set system = messages[0]["content"] %}{%- set rest = messages[1:] %}
{%- else %}{%- set rest = messages %}{%- endif %}
{{- bos_token }}
{%- for message in rest %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system is defined %}
            {{- "[INST] " + system + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message["role"] == "assistant" and message.tool_calls %}
        {{- "[TOOL_CALLS]" }}{{- message.tool_calls | map(attribute="function") | list | tojson }}
        {{- eos_token }}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"] | trim + eos_token }}
    {%- else %}
        {{- "[TOOL_RESULTS]" + message["content"] | string + "[/TOOL_RESULTS]" }}
    {%- endif %}
{%- endfor %}"""

PHI = """\
{% for message in messages %}
{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}
{% endfor %}
{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}"""

JOINS = """\
{%- for message in messages -%}
{% set body %}{{ message.content }}{% endset %}
{{- ['<|im_start|>', message.role, '\\n', message.name, body, '<|im_end|>'] | select | join }}
{%- endfor %}{{ ['<|im_', 'start|>'] | join ~ 'assistant\\n' }}"""


class Family(NamedTuple):
    """A chat format; ``control`` are the texts of its control tokens."""

    name: str
    vocabulary: Vocabulary
    control: tuple[str, ...]


def _family(
    name: str, wrapper: Any, template: str, special: tuple[str, ...], plain: tuple[str, ...] = ()
) -> Family:
    tokenizer = wrapper._tokenizer
    backend = tokenizer.backend_tokenizer
    backend.add_special_tokens([AddedToken(text, normalized=False) for text in special])
    backend.add_tokens([AddedToken(text, normalized=False) for text in plain])
    tokenizer.chat_template = template
    return Family(name, Vocabulary.of(tokenizer), (*special, *plain))


CHATML = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
TOOLS = ("<tool_call>", "</tool_call>")


@cache
def families() -> tuple[Family, ...]:
    """All of them."""
    think = ("<think>", "</think>", "<tool_response>", "</tool_response>")
    heads = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
    turns = ("<start_of_turn>", "<end_of_turn>")
    inst = ("[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]")
    roles = ("<|user|>", "<|assistant|>", "<|system|>", "<|end|>")
    return (
        _family("qwen", byte_level_tokenizer(), QWEN, CHATML, (*TOOLS, *think)),
        _family("llama", byte_level_tokenizer(), LLAMA, heads),
        _family("gemma", sentencepiece_tokenizer(strip=False), GEMMA, (*turns, "<s>"), ("<b>",)),
        _family("mistral", sentencepiece_tokenizer(), MISTRAL, (*inst, "<s>", "</s>")),
        _family("metaspace", metaspace_tokenizer(), MISTRAL, (*inst, "</s>")),
        _family("phi", byte_level_tokenizer(), PHI, roles),
        _family("joins", byte_level_tokenizer(), JOINS, CHATML, TOOLS),
    )
