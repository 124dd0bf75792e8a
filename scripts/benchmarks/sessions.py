"""Sessions of a coding agent: what it asks a server, request by request, and which tokens are new.

Owns the made-up text, the order of the requests, and the count of new tokens. Must never know a
server. Invariant: the same seed and scale give the same requests, as long as the answers are the
same.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from mlxgen.tokens import in_common

from .reciting import answer, words

TURNS = 30
SYSTEM, TOOLS = 12_000, 8_000  # tokens
TURN = (200, 4_000)  # tokens of a turn, evenly by their logarithm
ASKED = (200, 800)  # the same, of what the user says
USER_EVERY = 6  # turns from one message of the user to the next
TITLE = 8  # tokens of a title
TEXT = 14  # tokens of an answer that ends before its call

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of a session, in its ``turn``; ``cut``: tokens after which the answer is cut off,
    if it is. The answer to a title (``is_turn`` is false) does not belong to the session."""

    name: str
    turn: int
    messages: Sequence[Message]
    tools: Sequence[Message] | None
    thinks: bool
    cut: int | None = None
    is_turn: bool = True

    def body(self) -> dict[str, Any]:
        """What a client of OpenAI's API sends."""
        body = {
            "messages": self.messages,
            "temperature": 0,
            "max_tokens": self.cut or 200,
            "stream": True,
            "stream_options": {"include_usage": True},
            "chat_template_kwargs": {"enable_thinking": self.thinks},
        }
        return body | ({"tools": self.tools} if self.tools else {})


class Prose:
    """Made-up text of so many tokens: a word with the space before it is one, as is a sign."""

    def __init__(self, seed: str) -> None:
        self._chance = random.Random(seed)
        self._words = words()

    def length(self, low: int, high: int, scale: float) -> int:
        """Tokens of something, evenly by their logarithm."""
        factor: float = (high / low) ** self._chance.random()
        return max(8, round(low * factor / scale))

    def paragraphs(self, tokens: int) -> str:
        """Sentences, a few of them on a line."""
        chance = self._chance
        lines: list[str] = []
        while tokens > 0:
            line = []
            for _ in range(min(tokens, chance.randrange(20, 60))):
                line.append(chance.choice(self._words) + ("," if chance.random() < 0.08 else ""))
            tokens -= len(line) + 1
            lines.append(" ".join(line) + ".")
        return "\n".join(lines)

    def code(self, tokens: int) -> str:
        """A file with the numbers of its lines."""
        chance = self._chance
        lines: list[str] = []
        while tokens > 0:
            names = chance.choices(self._words, k=3)
            made = chance.choice(
                ("{} = {}({})", "def {}({}, {}):", "    return {}.{}({})", "# {} {} {}")
            )
            lines.append(f"{len(lines) % 200:3d}: {made.format(*names)}")
            tokens -= 10  # about
        return "\n".join(lines)

    def tool(self, name: str, tokens: int) -> Message:
        """The description of a tool, half of it for its parameters."""
        parameters = {
            f"{word}_{number}": {"type": "string", "description": self.paragraphs(24)}
            for number, word in enumerate(self._chance.choices(self._words, k=tokens // 2 // 48))
        }
        function = {
            "name": name,
            "description": self.paragraphs(tokens // 3),
            "parameters": {"type": "object", "properties": parameters, "required": []},
        }
        return {"type": "function", "function": function}


@dataclass
class Session:
    """The requests of one agent, of which each waits for the answer to the one before.

    If it ``thinks``, the reasoning of answers is sent back, and a template that drops earlier
    reasoning does so as soon as the user says something. If not, the template begins each answer
    with an empty reasoning that it leaves out of later prompts.
    """

    name: str
    thinks: bool
    scale: float = 1.0
    turns: int = TURNS
    _messages: list[Message] = field(default_factory=list)

    def asks(self) -> Iterator[Ask]:
        """The requests; ``answered`` has to be called after each of them but titles."""
        prose, common = Prose(self.name), Prose("all sessions")
        system = common.paragraphs(round(SYSTEM / self.scale))
        count = max(2, round(16 / self.scale**0.5))
        tools = [
            common.tool("read" if number == 0 else f"tool{number}", int(TOOLS / self.scale / count))
            for number in range(count)
        ]
        self._messages = [{"role": "system", "content": system}]
        for turn in range(self.turns):
            is_asked = turn % USER_EVERY == 0
            if is_asked:
                text = prose.paragraphs(prose.length(*ASKED, self.scale))
                self._messages.append({"role": "user", "content": text})
            else:
                text = prose.code(prose.length(*TURN, self.scale))
                self._messages.append(
                    {"role": "tool", "tool_call_id": self._call_id, "content": text}
                )
            ends = (turn + 1) % USER_EVERY == 0
            what = f"{self.name} {turn + 1}, {'user' if is_asked else 'tool'}"
            cut = len(answer(self.thinks)) - len(answer(False)) + TEXT if ends else None
            yield Ask(what, turn, tuple(self._messages), tools, self.thinks, cut)
            if turn == 0:
                yield Ask(
                    f"{self.name}, title", turn, self._title(), None, False, TITLE, is_turn=False
                )

    @property
    def _call_id(self) -> str:
        call_id: str = self._messages[-1]["tool_calls"][0]["id"]
        return call_id

    def _title(self) -> Sequence[Message]:
        short = Prose("title").paragraphs(round(300 / self.scale**0.5))
        return ({"role": "system", "content": short}, self._messages[-1])

    def answered(self, message: Message) -> None:
        """Go on from the message that the server has written."""
        self._messages.append(message)


def side_by_side(sessions: Sequence[Session]) -> Iterator[tuple[Session, Ask]]:
    """The requests of several sessions, a turn of each at a time."""
    running = [(session, session.asks()) for session in sessions]
    while running:
        for session, asks in tuple(running):
            ask = next(asks, None)
            if ask is None:
                running.remove((session, asks))
            else:
                yield session, ask


class Seen:
    """The token sequences that a server has run."""

    def __init__(self) -> None:
        self._sequences: list[list[int]] = []

    def new(self, prompt: list[int]) -> int:
        """How many tokens of a prompt come after the most that it has in common with one of them.

        At least one: the last token of a prompt has to be run for what comes after it.
        """
        common = max((in_common(prompt, other) for other in self._sequences), default=0)
        return max(1, len(prompt) - common)

    def add(self, prompt: list[int], answer: list[int]) -> None:
        """A prompt was run, and its answer generated."""
        tokens = prompt + answer
        others = self._sequences
        self._sequences = [each for each in others if in_common(tokens, each) < len(each)]
        self._sequences.append(tokens)

    def forget(self) -> None:
        """Nothing is left of them."""
        self._sequences.clear()
