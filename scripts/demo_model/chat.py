"""The chat format: messages, tools, the thinking switch, and the template that makes text of them.

What is trained is rendered by the template that is shipped, so it is what will be asked.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from jinja2.sandbox import ImmutableSandboxedEnvironment

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
CHAT_TEMPLATE: Final = (Path(__file__).parent / "texts" / "chat_template.jinja").read_text("utf-8")
_RENDERED: Final = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(
    CHAT_TEMPLATE
)

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


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A conversation up to the point where the assistant speaks, and what it should say."""

    messages: tuple[Message, ...]
    answer: str
    thought: str | None = None  # a text: thinking was asked for; None: it was not
    tools: tuple[Tool, ...] = ()

    def prompt(self) -> str:
        """As a chat with the shipped template begins it."""
        return _RENDERED.render(
            messages=[message.as_dict() for message in self.messages],
            tools=[tool.as_dict() for tool in self.tools],
            add_generation_prompt=True,
            enable_thinking=self.thought is not None,
        )

    def reply(self) -> str:
        """All that the model has to write, its end token left out."""
        if self.thought is None:
            return self.answer
        return f"<think>\n{self.thought}\n</think>\n\n{self.answer}"
