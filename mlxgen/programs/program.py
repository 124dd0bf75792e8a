"""Programs: what a caller passes to ``LanguageModel.control`` in the place of a controller.

Owns ``Program``, the specification. Must never run anything. Invariant: a program can be used
again and again; each generation gets a run, and variables, of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..errors import OptionError
from ..tokens import Token, Vocabulary
from .guide import ProgramFunction
from .history import History
from .running import Running
from .variables import Variables


@dataclass(frozen=True, slots=True)
class Program:
    """An async function of a ``Guide``, say ``async def program(g): await g.fixed("Hello")``.

    ``variables``: texts that the branches find there at the start.
    """

    function: ProgramFunction
    variables: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise OptionError("program", f"{self.function!r} is no async function of a guide")

    def bind(
        self, vocabulary: Vocabulary, vocab_size: int, *, prompt: Sequence[Token], opens_text: bool
    ) -> Running:
        """The controller of the root, for one generation."""
        history = History(prompt, vocabulary, opens_text=opens_text)
        return Running(self.function, history, vocab_size, Variables(self.variables))
