"""Controllers written as async functions: text, choices, forks and variables."""

from .guide import Guide, Program, ProgramFunction
from .running import Label, Running
from .shared import Forked, Task, Variables
from .token_set import TokenSet

__all__ = [
    "Forked",
    "Guide",
    "Label",
    "Program",
    "ProgramFunction",
    "Running",
    "Task",
    "TokenSet",
    "Variables",
]
