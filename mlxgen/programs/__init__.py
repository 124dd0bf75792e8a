"""Controllers written as async functions: text, choices, forks and variables."""

from .branch_history import Label
from .guide import Guide, ProgramFunction
from .program import Program
from .running import Running
from .task import Forked, Task
from .token_set import TokenSet
from .variables import Variables

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
