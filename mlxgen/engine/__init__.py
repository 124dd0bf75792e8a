"""The engine: sequences, caches, the step loop, and the pull and push interfaces."""

from ..loading import mlx_lm_first  # noqa: F401

# isort: split
from .batch import Batch
from .branches import Branch, Controller, Splice, Wait
from .chunk import Alternative, Candidate, Chunk, FinishReason, Progress, PromptScore, Result, Usage
from .control import Control
from .limits import Limits, Stats
from .options import Options
from .request.prompt import AnyPrompt, Prompt
from .request.request import Request
from .scheduling.scheduler import Scheduler, Ticket
from .session import Session
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
    "FinishReason",
    "Limits",
    "Options",
    "Progress",
    "Prompt",
    "PromptScore",
    "Request",
    "Result",
    "Scheduler",
    "Session",
    "Splice",
    "Stats",
    "Stream",
    "Ticket",
    "Usage",
    "Wait",
]
