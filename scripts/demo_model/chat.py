"""The chat format: the template that is shipped, and the same rendering in plain Python.

Owns how messages, tools and the thinking switch become text. It knows nothing of what the messages
say. Invariant, held by a test: `render` gives exactly what `CHAT_TEMPLATE` gives, so that what was
trained is what is asked.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

END_OF_TEXT: Final = "<|endoftext|>"
START: Final = "<|im_start|>"
END: Final = "<|im_end|>"
NO_THOUGHT: Final = "<think>\n\n</think>\n\n"

# Tokens that end a text are special (a decoder may skip them); the marks are ordinary added tokens.
SPECIAL_TOKENS: Final = (END_OF_TEXT, START, END)
MARK_TOKENS: Final = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)

# mlx-lm knows the tool format by the literal text "tool_call.name".
CHAT_TEMPLATE: Final = """\
{%- if tools or (messages and messages[0].role == 'system') %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages and messages[0].role == 'system' %}
        {{- messages[0].content }}
        {%- if tools %}{{- '\\n\\n' }}{%- endif %}
    {%- endif %}
    {%- if tools %}
        {{- 'Tools:' }}
        {%- for tool in tools %}
            {%- set f = tool.function if tool.function is defined else tool %}
            {{- '\\n' + f.name + '(' }}
            {%- if f.parameters and f.parameters.properties %}
                {%- for key, value in f.parameters.properties.items() %}
                    {{- (', ' if not loop.first else '') + key }}
                    {%- if value.type is string %}{{- ': ' + value.type }}{%- endif %}
                {%- endfor %}
            {%- endif %}
            {{- ')' }}
            {%- if f.description %}{{- ' - ' + f.description }}{%- endif %}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'system' %}
        {%- if not loop.first %}
            {{- '<|im_start|>system\\n' + message.content + '<|im_end|>\\n' }}
        {%- endif %}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>' + message.content }}
        {{- '</tool_response><|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set text = message.content if message.content is string else '' %}
        {%- if '</think>' in text %}
            {%- set text = text.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' + text }}
        {%- for tool_call in message.tool_calls or [] %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '<tool_call>{"name": "' + tool_call.name + '", "arguments": ' }}
            {%- if tool_call.arguments is string %}
                {{- tool_call.arguments }}
            {%- else %}
                {{- tool_call.arguments | tojson }}
            {%- endif %}
            {{- '}</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if not enable_thinking %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. `content` is its text; an assistant's tool call is written into it as text."""

    role: Role
    content: str

    def as_dict(self) -> dict[str, str]:
        return {"role": self.role, "content": self.content}


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call; `parameters` maps a name to its JSON type."""

    name: str
    description: str
    parameters: tuple[tuple[str, str], ...]

    def as_dict(self) -> dict[str, Any]:
        """The tool as OpenAI clients send it."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": {
                    "type": "object",
                    "properties": {key: {"type": kind} for key, kind in self.parameters},
                    "required": [key for key, _ in self.parameters],
                },
            },
        }

    def signature(self) -> str:
        arguments = ", ".join(f"{key}: {kind}" for key, kind in self.parameters)
        line = f"{self.name}({arguments})"
        return f"{line} - {self.description}" if self.description else line


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A conversation up to the point where the assistant speaks, and what it should say."""

    messages: tuple[Message, ...]
    answer: str
    thought: str | None = None  # a text: thinking was asked for; None: it was not
    tools: tuple[Tool, ...] = ()

    def prompt(self) -> str:
        return render(self.messages, tools=self.tools, thinking=self.thought is not None)

    def reply(self) -> str:
        """All that the model has to write, its end token left out."""
        if self.thought is None:
            return self.answer
        return f"<think>\n{self.thought}\n</think>\n\n{self.answer}"


def render(messages: Sequence[Message], *, tools: Sequence[Tool] = (), thinking: bool) -> str:
    """The prompt for the next assistant turn, as the chat template writes it."""
    parts: list[str] = []
    rest = list(messages)
    head: list[str] = []
    if rest and rest[0].role == "system":
        head.append(rest.pop(0).content)
    if tools:
        head.append("\n".join(["Tools:", *(tool.signature() for tool in tools)]))
    if head:
        parts.append(f"{START}system\n" + "\n\n".join(head) + f"{END}\n")
    for message in rest:
        if message.role == "tool":
            text = f"<tool_response>{message.content}</tool_response>"
            parts.append(f"{START}user\n{text}{END}\n")
        else:
            parts.append(f"{START}{message.role}\n{message.content}{END}\n")
    parts.append(f"{START}assistant\n")
    if not thinking:
        parts.append(NO_THOUGHT)
    return "".join(parts)
