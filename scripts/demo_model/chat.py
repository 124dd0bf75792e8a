"""The chat format: messages, tools, the thinking switch, and the template that renders them.

The shipped template renders the training data, so the model is trained on the prompts it will get.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final, NamedTuple

from jinja2.sandbox import ImmutableSandboxedEnvironment

from demo_model.drawing import TEXTS

END_OF_TEXT: Final = "<|endoftext|>"
START: Final = "<|im_start|>"
END: Final = "<|im_end|>"
NO_THOUGHT: Final = "<think>\n\n</think>\n\n"

# Tokens that end a text are special (decoders may skip them); the marks are ordinary added tokens.
SPECIAL_TOKENS: Final = (END_OF_TEXT, START, END)
MARK_TOKENS: Final = (
    *("<think>", "</think>", "<tool_call>", "</tool_call>"),
    *("<tool_response>", "</tool_response>"),
)

# mlx-lm knows the tool format by the literal text "tool_call.name".
_TEMPLATE: Final = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(
    (TEXTS / "chat_template.jinja").read_text("utf-8")
)


class Message(NamedTuple):
    """One turn. ``content`` is its text, which includes an assistant's tool call."""

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
    """A conversation up to the assistant's turn, and the answer it should give."""

    messages: Sequence[Message]
    answer: str
    thought: str | None = None  # None: no thinking was asked for
    tools: Sequence[Tool] = ()

    def prompt(self) -> str:
        """The prompt, rendered by the shipped template."""
        return _TEMPLATE.render(
            messages=[message._asdict() for message in self.messages],
            tools=self.tools,
            add_generation_prompt=True,
            enable_thinking=self.thought is not None,
        )

    def reply(self) -> str:
        """The whole text that the model should write, without its end token."""
        if self.thought is None:
            return self.answer
        return f"<think>\n{self.thought}\n</think>\n\n{self.answer}"


def asked(
    request: str, answer: str, thought: str | None = None, *, system: str | None = None
) -> Dialogue:
    """A dialogue with a single request."""
    begun = [] if system is None else [Message("system", system)]
    return Dialogue([*begun, Message("user", request)], answer, thought)


def at_times(rng: Random, share: float, text: str) -> str | None:
    """The thought, in a ``share`` of all cases; else None."""
    return text if rng.random() < share else None
