"""The engine: sequences, caches, the step loop, and the pull and push interfaces."""

from ..loading import mlx_lm_first  # noqa: F401

# isort: split
from .batch import Batch
from .branches import Branch, Controller, Path, Splice, Wait
from .chunk import (
    Alternative,
    Candidate,
    Chunk,
    DraftCount,
    FinishReason,
    Progress,
    PromptScore,
    Rejected,
    Result,
    Usage,
    all_drafts,
    fold,
)
from .control import Control, bound_controller, control_options
from .limits import Limits, Stats
from .options import Options
from .request.accept import change_options, end, end_thinking, keep_only, put
from .request.prompt import AnyPrompt, Prompt
from .request.request import Request
from .scheduling.scheduler import Scheduler
from .session import Session
from .step.drawn import Event
from .step.handle import Handle
from .step.timeline import Moment, Watch
from .stream import Stream

__all__ = [
    "Alternative",
    "AnyPrompt",
    "Batch",
    "Branch",
    "Candidate",
    "Chunk",
    "Control",
    "Controller",
    "DraftCount",
    "Event",
    "FinishReason",
    "Handle",
    "Limits",
    "Moment",
    "Options",
    "Path",
    "Progress",
    "Prompt",
    "PromptScore",
    "Rejected",
    "Request",
    "Result",
    "Scheduler",
    "Session",
    "Splice",
    "Stats",
    "Stream",
    "Usage",
    "Wait",
    "Watch",
    "all_drafts",
    "bound_controller",
    "change_options",
    "control_options",
    "end",
    "end_thinking",
    "fold",
    "keep_only",
    "put",
]
