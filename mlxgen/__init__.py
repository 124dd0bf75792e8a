"""Text generation with MLX language models in which every step can be taken back.

Owns the public names. Each is imported when it is first used, so ``import mlxgen`` costs nothing
before a model is wanted. They are listed once, in imports that type checkers read and that never
run: ``__getattr__`` finds the room of a name there. Invariant: ``__all__`` has all public names and
no others, and ``mlxgen.load`` is the function: its module is light and imported here, as importing
it later would put the module in the function's place.
"""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .load import load as load

# isort: off
if TYPE_CHECKING:
    from .chat import Chat as Chat
    from .engine import (
        Alternative as Alternative,
        Batch as Batch,
        Branch as Branch,
        Candidate as Candidate,
        Chunk as Chunk,
        Control as Control,
        Controller as Controller,
        Limits as Limits,
        PromptScore as PromptScore,
        Rejected as Rejected,
        Result as Result,
        Session as Session,
        Splice as Splice,
        Stream as Stream,
        Usage as Usage,
        Wait as Wait,
    )
    from .errors import (
        AdapterError as AdapterError,
        CapacityError as CapacityError,
        DeadEndError as DeadEndError,
        FilterError as FilterError,
        GrammarError as GrammarError,
        HookError as HookError,
        LoadError as LoadError,
        MachineError as MachineError,
        MemoryLimitError as MemoryLimitError,
        MlxgenError as MlxgenError,
        ModelError as ModelError,
        ModelNotFoundError as ModelNotFoundError,
        OptionError as OptionError,
        PromptError as PromptError,
        QueueFullError as QueueFullError,
        RewindError as RewindError,
        StateError as StateError,
        UnsupportedModelError as UnsupportedModelError,
        WeightsError as WeightsError,
    )
    from .filters import (
        After as After,
        AllOf as AllOf,
        Allow as Allow,
        Checked as Checked,
        Choice as Choice,
        Filter as Filter,
        JsonObject as JsonObject,
        JsonSchema as JsonSchema,
        Lark as Lark,
        LMFormatEnforcer as LMFormatEnforcer,
        OutlinesCore as OutlinesCore,
        Regex as Regex,
        Replay as Replay,
        Substring as Substring,
    )
    from .language_model import LanguageModel as LanguageModel
    from .options.table import GenerationOptions as GenerationOptions
    from .programs import (
        Forked as Forked,
        Guide as Guide,
        Label as Label,
        Program as Program,
        Task as Task,
        TokenSet as TokenSet,
        Variables as Variables,
    )
    from .sampling import Hook as Hook, PostSamplingResult as PostSamplingResult
    from .text import (
        StopMatcher as StopMatcher,
        TextDecoder as TextDecoder,
        sequence_overlap as sequence_overlap,
    )
    from .tokens import Infill as Infill, Token as Token, Vocabulary as Vocabulary
# isort: on

__version__ = "0.1.0"


def _homes() -> dict[str, str]:
    """The room of each public name, as the imports above have it."""
    tree = ast.parse(Path(__file__).read_text(encoding="utf-8"))
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    return {
        name.asname: node.module or "" for node in imports for name in node.names if name.asname
    }


_HOMES = _homes()

__all__ = sorted(["__version__", *_HOMES])


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
