"""Models on the Hugging Face hub: from an id to a folder in the user's cache.

Owns the communication with the hub: which files are fetched, what happens if it cannot be reached,
and what its errors mean. Must never know what is in the files. Invariant: a returned folder holds
the requested revision if the hub could be asked; otherwise the log says that the cached copy is
used.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils.tqdm import disable_progress_bars

from ..errors import LoadError, ModelNotFoundError
from .checkpoint import HEADS, Part

logger = logging.getLogger(__name__)

# What mlx-lm fetches: weights, configuration, tokenizer and chat template; and heads.
WEIGHTS = ("model*.safetensors", HEADS)
OTHERS = (
    *("*.json", "*.jsonl", "*.jinja", "*.py", "*.txt"),
    *("tokenizer.model", "*.tiktoken", "tiktoken.model"),
)
_SECONDS_TO_ANSWER = 10.0


def download(repo: str, revision: str | None = None, part: Part | None = None) -> Path:
    """The folder with the files of the model ``repo`` (``owner/name``), fetched if necessary.

    With ``part``, only the weight files that it names are fetched.

    It uses the user's cache and token, and shows progress as huggingface-hub does. If the hub
    cannot be reached or does not serve the model, a complete copy in the cache is used. Raises
    ``ModelNotFoundError`` if the id or the revision does not exist for this user, and ``LoadError``
    if the hub could not be asked.
    """
    problem, weights = _asked(repo, revision), None
    if part is not None:
        weights = part(_fetched(repo, revision, problem))
    folder = _fetched(repo, revision, problem, WEIGHTS if weights is None else sorted(weights))
    if problem is not None and not isinstance(problem, OfflineModeIsEnabled):
        logger.warning("%s; using the cached copy of %s", _reason(problem), repo)
    return folder


def check(repo: str) -> None:
    """Raise as ``download`` does if the hub does not serve this model and the cache has no complete
    copy of it; nothing is fetched."""
    problem = _asked(repo, None)
    if problem is not None:
        _fetched(repo, None, problem, WEIGHTS)


def hide_progress() -> None:
    """Turn off progress bars of downloads in this process."""
    disable_progress_bars()


def _asked(repo: str, revision: str | None) -> Exception | None:
    """Why the hub does not serve a model now, or ``None``; raises for one that cannot exist."""
    try:
        HfApi().model_info(repo, revision=revision, timeout=_SECONDS_TO_ANSWER)
    except HFValidationError as error:
        raise ModelNotFoundError(
            f"there is no folder {repo}, and a hub id looks like owner/name; check the spelling"
        ) from error
    except RevisionNotFoundError as error:
        raise ModelNotFoundError(
            f"{repo} has no revision {revision}; pass a branch, a tag or a commit"
        ) from error
    except Exception as error:  # whatever the hub's client raises if the network fails
        return error
    return None


def _fetched(
    repo: str, revision: str | None, problem: Exception | None, weights: Iterable[str] = ()
) -> Path:
    """The folder of a model with these ``weights``; from the cache alone, if there is a problem
    with the hub."""
    files, offline = [*OTHERS, *weights], problem is not None
    try:
        folder = snapshot_download(
            repo, revision=revision, allow_patterns=files, local_files_only=offline
        )
    except Exception as error:
        cause = problem or error
        reason = _reason(cause)
        if isinstance(cause, GatedRepoError):
            raise ModelNotFoundError(
                f"{repo}: {reason}; accept them on its page, then log in with `hf auth login`"
            ) from cause
        if isinstance(cause, RepositoryNotFoundError):
            raise ModelNotFoundError(
                f"there is no folder {repo}, and {reason}; check the spelling, or log in with"
                " `hf auth login` if it is private"
            ) from cause
        raise LoadError(
            f"{repo} is not a folder, the cache has no complete copy, and {reason};"
            " check the name and the connection, or pass a folder"
        ) from cause
    return Path(folder)


def _reason(error: Exception) -> str:
    """What went wrong with the hub, in one line."""
    if isinstance(error, GatedRepoError):
        return "the hub gives this model only to users who accepted its terms"
    if isinstance(error, RepositoryNotFoundError):
        return "the hub does not know this model, or does not show it to this user"
    if isinstance(error, OfflineModeIsEnabled):
        return "the hub was not asked because HF_HUB_OFFLINE is set"
    words = str(error).split()
    return f"the hub cannot be reached ({' '.join(words)[:120] or type(error).__name__})"
