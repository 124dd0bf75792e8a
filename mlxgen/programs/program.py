"""Programs: what a caller may pass to ``LanguageModel.control`` instead of a controller.

A ``Program`` is a specification and can be used again; each generation gets its own run and
its own variables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from ..errors import OptionError
from ..tokens import Token, Vocabulary
from .branch_history import BranchHistory
from .guide import ProgramFunction, begin
from .running import Running
from .variables import Variables


@dataclass(frozen=True, slots=True)
class Program:
    """An async function of a ``Guide``, for example ``async def p(g): await g.fixed("Hello")``.

    ``variables``: the texts of the shared variables at the start.
    """

    function: ProgramFunction
    variables: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise OptionError(
                "program", f"expected an async function of a guide, got {self.function!r}"
            )

    def bind(
        self, vocabulary: Vocabulary, vocab_size: int, *, prompt: Sequence[Token], opens_text: bool
    ) -> Running:
        """The controller of the root, for one generation."""
        history = BranchHistory(prompt, vocabulary, opens_text=opens_text)
        start = partial(begin, self.function)
        return Running(start, history, vocab_size, Variables(self.variables))
