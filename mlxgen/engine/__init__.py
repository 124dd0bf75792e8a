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
from .scheduling.scheduler import Scheduler
from .session import Session
from .step.handle import Handle
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
    "Handle",
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
    "Usage",
    "Wait",
]
