"""The engine: sequences, caches, the step loop, and the pull and push interfaces."""

from .chunk import Alternative, Chunk, FinishReason, Result, Usage
from .options import GenerationOptions, Options
from .prompt import Chat
from .session import Session
from .stream import Stream

__all__ = [
    "Alternative",
    "Chat",
    "Chunk",
    "FinishReason",
    "GenerationOptions",
    "Options",
    "Result",
    "Session",
    "Stream",
    "Usage",
]
