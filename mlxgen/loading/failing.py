"""Failures of other libraries, told by our errors in one line."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ..errors import LoadError, MlxgenError


@contextlib.contextmanager
def failing(kind: type[LoadError], what: str) -> Iterator[None]:
    """A context in which any error of another library says ``what`` has failed, in one line.

    mlx-lm, transformers, tokenizers, sentencepiece and tiktoken may raise anything.
    """
    try:
        yield
    except MlxgenError:
        raise
    except Exception as error:
        words = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, KeyError):
            words = f"{words} is missing"
        shown = words if len(words) <= 200 else f"{words[:200]}..."
        raise kind(f"{what}: {shown}") from error
