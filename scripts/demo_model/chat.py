"""The chat format: messages, tools, the thinking switch, and the template that makes text of them.

What is trained is rendered by the template that is shipped, so it is what will be asked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

from jinja2.sandbox import ImmutableSandboxedEnvironment

END_OF_TEXT: Final = "<|endoftext|>"
START: Final = "<|im_start|>"
END: Final = "<|im_end|>"
NO_THOUGHT: Final = "<think>\n\n</think>\n\n"

# Tokens that end a text are special (a decoder may skip them); the marks are ordinary added tokens.
SPECIAL_TOKENS: Final = (END_OF_TEXT, START, END)
MARK_TOKENS: Final = (
    *("<think>", "</think>", "<tool_call>", "</tool_call>"),
    *("<tool_response>", "</tool_response>"),
)

# mlx-lm knows the tool format by the literal text "tool_call.name".
CHAT_TEMPLATE: Final = (Path(__file__).parent / "texts" / "chat_template.jinja").read_text("utf-8")
_RENDERED: Final = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(
    CHAT_TEMPLATE
)


class Message(NamedTuple):
    """One turn. ``content`` is its text; an assistant's tool call is written into it as text."""

    role: str
    content: str


Tool = dict[str, Any]


def tool_of(name: str, description: str, parameters: Mapping[str, str]) -> Tool:
    """A function that the model may call, as OpenAI clients send it; ``parameters`` maps a name to
    its JSON type."""
    properties = {key: {"type": kind} for key, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    function = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A conversation up to the point where the assistant speaks, and what it should say."""

    messages: Sequence[Message]
    answer: str
    thought: str | None = None  # a text: thinking was asked for; None: it was not
    tools: Sequence[Tool] = ()

    def prompt(self) -> str:
        """As a chat with the shipped template begins it."""
        return _RENDERED.render(
            messages=[message._asdict() for message in self.messages],
            tools=self.tools,
            add_generation_prompt=True,
            enable_thinking=self.thought is not None,
        )

    def reply(self) -> str:
        """All that the model has to write, its end token left out."""
        if self.thought is None:
            return self.answer
        return f"<think>\n{self.thought}\n</think>\n\n{self.answer}"


def asked(
    request: str, answer: str, thought: str | None = None, *, system: str | None = None
) -> Dialogue:
    """A dialogue of one request."""
    begun = [] if system is None else [Message("system", system)]
    return Dialogue([*begun, Message("user", request)], answer, thought)


def at_times(rng: Random, share: float, text: str) -> str | None:
    """A thought that is asked for that often."""
    return text if rng.random() < share else None
