"""Load a model: make a ``LanguageModel`` of a folder, a hub id or the bundled demo model.

Owns the way from a name to a model's files, and the check whether they fit in memory. Must
never know how a model is built from its files (``pair`` does) or how text is generated.
Invariant: a model that does not fit is refused before its weights are read, and every failure
is a ``LoadError`` or an ``OptionError``. Importing this is quick; slow imports wait for the
first call.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from .errors import ModelNotFoundError, OptionError
from .loading.cache_dir import CacheDir
from .loading.checkpoint import Checkpoint, Part, check_adapter, path_of
from .loading.memory import check_memory, wirable
from .options.kv import check_kv

if TYPE_CHECKING:
    from .model import LanguageModel

ModelName: TypeAlias = str | os.PathLike[str]
Reading: TypeAlias = Callable[[list[Any]], Iterable[Any]]
logger = logging.getLogger(__name__)


def load(
    path_or_hf_repo: ModelName | None = None,
    *,
    adapter: ModelName | None = None,
    revision: str | None = None,
    draft: ModelName | LanguageModel | None = None,
    ignore_memory_limit: bool = False,
    cache_bytes: int | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_dir_bytes: int | None = None,
    wired_limit: int | Literal["auto", "recommended"] | None = "auto",
    trust_remote_code: bool = False,
    kv_bits: int | None = None,
    kv_group_size: int | None = None,
    kv_quant_start: int = 0,
) -> LanguageModel:
    """Load a model that mlx-lm supports, with its tokenizer, and evaluate its weights.

    - ``path_or_hf_repo``: a folder, a hub id (``owner/name``), or ``None`` for the small
      demo model that comes with the package.
    - ``adapter``: a folder with an adapter that mlx-lm trained for this model.
    - ``revision``: a branch, tag or commit; only for a hub id.
    - ``draft``: a smaller model with the same tokenizer that proposes tokens (a folder, a hub id
      or a loaded model), or ``"ngram"``, which finds them in the text so far.
    - ``ignore_memory_limit``: load the weights even if they do not fit in memory.
    - ``cache_bytes``: the maximum size of all KV caches, including the prefix cache; by default
      half of the memory that weights and a reserve leave. ``memory`` of the result has the plan.
    - ``cache_dir``: a folder in which prefixes are kept, so that later processes do not run them
      again; several processes and models may share it. ``~`` is expanded. ``cache_dir_bytes``: how
      many bytes its files may use; by default a tenth of what is free there, at most 32 GiB.
    - ``wired_limit``: how many bytes the system may keep wired for MLX, so that they are never
      paged out: what the plan needs (``"auto"``), as much as the device recommends
      (``"recommended"``), or a number; ``None`` leaves the limit as it is. It applies to the whole
      process, and only on Apple silicon.
    - ``trust_remote_code``: run the Python files that come with the model.
    - ``kv_bits`` (2, 3, 4, 5, 6 or 8): hold the KV cache in so many bits a number, that of the
      ``draft`` as well if it is loaded here. ``kv_group_size`` (32, 64 or 128) is how many numbers
      share a scale; ``kv_quant_start``: how many tokens at the beginning of every sequence stay as
      they are. See ``LanguageModel``.

    The sampling options that the model's makers recommend are in ``recommended`` of the result.
    Invalid values in their ``generation_config.json`` are ignored, with a warning in the log.

    Call this on the thread that generates. Raises ``OptionError``, or ``LoadError`` or one of its
    subclasses, with a message that says what to do.
    """
    check_kv(kv_bits, kv_group_size, kv_quant_start)
    CacheDir.of(cache_dir, cache_dir_bytes)  # now, as reading weights takes long
    name, source = _find(path_or_hf_repo, revision)
    adapter_folder = None if adapter is None else path_of(adapter)
    if adapter_folder is not None:
        check_adapter(adapter_folder)
    if not ignore_memory_limit:
        check_memory(f"the weights of {name}", source.nbytes)
    wired = _wired(wired_limit)

    from .loading.pair import load_pair
    from .model import LanguageModel

    model, tokenizer, config, generation = load_pair(
        source, adapter=adapter_folder, trust_remote_code=trust_remote_code
    )
    if generation.notice is not None:
        logger.warning("%s", generation.notice)
    lm = LanguageModel(
        model,
        tokenizer,
        name=name,
        config=config,
        recommended=generation.recommended,
        cache_bytes=cache_bytes,
        cache_dir=cache_dir,
        cache_dir_bytes=cache_dir_bytes,
        is_demo=path_or_hf_repo is None,
        kv_bits=kv_bits,
        kv_group_size=kv_group_size,
        kv_quant_start=kv_quant_start,
    )
    if isinstance(draft, (str, os.PathLike)) and draft != "ngram":
        draft = load(
            draft,
            wired_limit=None,
            trust_remote_code=trust_remote_code,
            kv_bits=kv_bits,
            kv_group_size=kv_group_size,
            kv_quant_start=kv_quant_start,
        )
    lm.use_draft(draft)
    if wired_limit is not None:
        lm.wire(wired)
    return lm


def weights_of(path_or_hf_repo: ModelName | None = None, *, revision: str | None = None) -> int:
    """The bytes of a model's weights; fetches what is not there yet. Raises as ``load``."""
    return _find(path_or_hf_repo, revision)[1].nbytes


def folder_of(name: str) -> Path | None:
    """The folder that a model's name means; ``None`` for a hub id that the hub or the cache knows.
    Raises as ``load`` if there is no such model; no weights are fetched or read."""
    path = _folder(name)
    if path is not None:
        return Checkpoint.open(path).folder
    from .loading.hub import check

    check(name)
    return None


# ---- from a name to files ----


def _find(
    name: ModelName | None, revision: str | None, part: Part | None = None
) -> tuple[str, Checkpoint]:
    """The name of a model, for messages, and its files; of the weights, only a ``part`` may be
    fetched and checked."""
    if name is None:
        _refuse_revision(revision, "the demo model")
        return "demo", _bundled(part)
    if not isinstance(name, (str, os.PathLike)):
        raise OptionError(
            "path_or_hf_repo", f"expected a folder or a hub id, got {type(name).__name__}"
        )
    path = _folder(name)
    if path is not None:
        _refuse_revision(revision, f"the folder {path}")
        return path.resolve().name, Checkpoint.open(path, part)
    from .loading.hub import download

    text = os.fspath(name)
    return text, Checkpoint.open(download(text, revision, part), part)


def _folder(name: ModelName) -> Path | None:
    """The folder that a name means; ``None`` for what may be a hub id."""
    text, path = os.fspath(name), path_of(name)
    if not text.strip():
        raise ModelNotFoundError("the model's name is empty; pass a folder or a hub id")
    if _exists(path):
        return path
    if isinstance(name, os.PathLike) or path.is_absolute() or text[0] in ".~":
        raise ModelNotFoundError(f"there is no folder {path}; check the path")
    return None


def _bundled(part: Part | None) -> Checkpoint:
    folder = Path(str(files(__package__).joinpath("demo", "model")))
    try:
        return Checkpoint.open(folder, part)
    except ModelNotFoundError as error:
        raise ModelNotFoundError(
            f"the demo model is missing from this installation ({error}); install mlxgen again"
        ) from error


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # too long, or in a folder without permission
        return False


def _refuse_revision(revision: str | None, what: str) -> None:
    if revision is not None:
        raise OptionError(
            "revision", f"only a hub id has revisions, but this is {what}; leave it out"
        )


# ---- memory ----


def _reading(name: str, *, rank: int, ignore_memory_limit: bool) -> Reading:
    """How a rank reads its part of a model; rank 0 shows a progress bar.

    How many bytes it needs is known once mlx-lm has divided the model.
    """

    def read(arrays: list[Any]) -> Iterable[Any]:
        if not ignore_memory_limit:
            nbytes = sum(array.nbytes for array in arrays)
            check_memory(f"the weights of this machine's part of {name}", nbytes)
        if rank:
            return arrays
        from .progress import reading

        return reading(arrays)

    return read


def _wired(limit: int | Literal["auto", "recommended"] | None) -> int | None:
    """The bytes to wire, checked; ``None`` for what the plan needs."""
    if limit is None or limit == "auto":
        return None
    most = wirable()
    if most is None:
        raise OptionError(
            "wired_limit", "needs Apple silicon, but MLX found no Metal here; leave it out"
        )
    wanted = most if limit == "recommended" else limit
    if isinstance(wanted, bool) or not isinstance(wanted, int) or not 0 <= wanted <= most:
        raise OptionError("wired_limit", f"expected 0 to {most} bytes, got {limit!r}")
    return wanted
