"""Text generation with MLX language models in which every step can be taken back.

Owns the public names; each is imported when it is first used, so that ``import mlxgen``
costs nothing before a model is wanted. Invariant: ``__all__`` is what there is, and
``mlxgen.load`` is the function: its module is light and imported here, as importing it
later would put the module in the function's place.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .load import load

if TYPE_CHECKING:
    from .engine import (
        Alternative,
        Batch,
        Branch,
        Candidate,
        Chat,
        Chunk,
        Control,
        Controller,
        GenerationOptions,
        Limits,
        PromptScore,
        Result,
        Session,
        Splice,
        Stream,
        Usage,
        Wait,
    )
    from .errors import (
        AdapterError,
        CapacityError,
        DeadEndError,
        FilterError,
        GrammarError,
        HookError,
        LoadError,
        MemoryLimitError,
        MlxgenError,
        ModelError,
        ModelNotFoundError,
        OptionError,
        PromptError,
        QueueFullError,
        RewindError,
        StateError,
        UnsupportedModelError,
        WeightsError,
    )
    from .filters import (
        After,
        AllOf,
        Allow,
        Choice,
        Filter,
        JsonObject,
        JsonSchema,
        Lark,
        LMFormatEnforcer,
        OutlinesCore,
        Regex,
        Replay,
        Substring,
    )
    from .model import LanguageModel
    from .programs import Forked, Guide, Label, Program, Task, TokenSet, Variables
    from .sampling import Hook, PostSamplingResult
    from .text import StopMatcher, TextDecoder, sequence_overlap
    from .tokens import Token, Vocabulary

__version__ = "0.1.0"

_ROOMS = {
    "engine": (
        "Alternative",
        "Batch",
        "Branch",
        "Candidate",
        "Chat",
        "Chunk",
        "Control",
        "Controller",
        "GenerationOptions",
        "Limits",
        "PromptScore",
        "Result",
        "Session",
        "Splice",
        "Stream",
        "Usage",
        "Wait",
    ),
    "errors": (
        "AdapterError",
        "CapacityError",
        "DeadEndError",
        "FilterError",
        "GrammarError",
        "HookError",
        "LoadError",
        "MemoryLimitError",
        "MlxgenError",
        "ModelError",
        "ModelNotFoundError",
        "OptionError",
        "PromptError",
        "QueueFullError",
        "RewindError",
        "StateError",
        "UnsupportedModelError",
        "WeightsError",
    ),
    "filters": (
        "After",
        "AllOf",
        "Allow",
        "Choice",
        "Filter",
        "JsonObject",
        "JsonSchema",
        "LMFormatEnforcer",
        "Lark",
        "OutlinesCore",
        "Regex",
        "Replay",
        "Substring",
    ),
    "model": ("LanguageModel",),
    "programs": ("Forked", "Guide", "Label", "Program", "Task", "TokenSet", "Variables"),
    "sampling": ("Hook", "PostSamplingResult"),
    "text": ("StopMatcher", "TextDecoder", "sequence_overlap"),
    "tokens": ("Token", "Vocabulary"),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [
    "AdapterError",
    "After",
    "AllOf",
    "Allow",
    "Alternative",
    "Batch",
    "Branch",
    "Candidate",
    "CapacityError",
    "Chat",
    "Choice",
    "Chunk",
    "Control",
    "Controller",
    "DeadEndError",
    "Filter",
    "FilterError",
    "Forked",
    "GenerationOptions",
    "GrammarError",
    "Guide",
    "Hook",
    "HookError",
    "JsonObject",
    "JsonSchema",
    "LMFormatEnforcer",
    "Label",
    "LanguageModel",
    "Lark",
    "Limits",
    "LoadError",
    "MemoryLimitError",
    "MlxgenError",
    "ModelError",
    "ModelNotFoundError",
    "OptionError",
    "OutlinesCore",
    "PostSamplingResult",
    "Program",
    "PromptError",
    "PromptScore",
    "QueueFullError",
    "Regex",
    "Replay",
    "Result",
    "RewindError",
    "Session",
    "Splice",
    "StateError",
    "StopMatcher",
    "Stream",
    "Substring",
    "Task",
    "TextDecoder",
    "Token",
    "TokenSet",
    "UnsupportedModelError",
    "Usage",
    "Variables",
    "Vocabulary",
    "Wait",
    "WeightsError",
    "__version__",
    "load",
    "sequence_overlap",
]


def __getattr__(name: str) -> Any:
    room = _ROOM_OF.get(name)
    if room is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{room}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_ROOM_OF])
