"""Load a model: make a ``LanguageModel`` from a folder, a hub id or the bundled demo model.

Owns the way from a name to a model's files, and the check whether they fit in memory. Must never
know how a model is built from its files (``pair`` does) or how text is generated. Invariant: a
model that does not fit is refused before its weights are read, and every failure is a
``LoadError``, an ``OptionError`` or, on several machines, a ``MachineError``. Importing this is
quick; slow imports wait for the first call.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from .errors import ModelNotFoundError, OptionError
from .loading.checkpoint import Checkpoint, Part, check_adapter, fingerprint, path_of
from .loading.memory import CacheDir, check_memory, wirable
from .options.rule import DRAFTS, integer
from .options.table import check_kv

if TYPE_CHECKING:
    from .engine.runtime import ModelRuntime
    from .language_model import LanguageModel
    from .machines.machines import Machines
    from .machines.share import Share

T = TypeVar("T")

ModelName: TypeAlias = str | os.PathLike[str]
Wired: TypeAlias = int | Literal["auto", "recommended"] | None
logger = logging.getLogger(__name__)

DEMO = Path(__file__).parent / "demo" / "model"


def load(
    path_or_hf_repo: ModelName | None = None,
    *,
    adapter: ModelName | None = None,
    revision: str | None = None,
    draft: ModelName | LanguageModel | None = "auto",
    ignore_memory_limit: bool = False,
    cache_bytes: int | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_dir_bytes: int | None = None,
    wired_limit: Wired = "auto",
    trust_remote_code: bool = False,
    max_context: int | None = None,
    kv_bits: int | None = None,
    kv_group_size: int | None = None,
    kv_quant_start: int = 0,
    distributed: bool | None = None,
) -> LanguageModel:
    """Load a model that mlx-lm supports, with its tokenizer, and evaluate its weights.

    - ``path_or_hf_repo``: a folder, a hub id (``owner/name``), or ``None`` for the small
      demo model that comes with the package.
    - ``adapter``: a folder with an adapter that mlx-lm trained for this model.
    - ``revision``: a branch, tag or commit; only for a hub id.
    - ``draft``: where draft tokens come from, unless a call says otherwise: ``"auto"``, earlier
      text and the model's own prediction heads, where that is faster; a smaller model with the same
      tokenizer (a folder, a hub id or a loaded model), in addition to these; ``"ngram"``, earlier
      text only; or ``"off"``, which also leaves out the weights of prediction heads.
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
    - ``max_context``: the most tokens of prompt and answer together; by default what the model's
      configuration says. More than that is allowed, with a warning in the log.
    - ``kv_bits`` (2, 3, 4, 5, 6 or 8): quantise the KV cache to this many bits, that of the
      ``draft`` as well if it is loaded here. ``kv_group_size`` (32, 64 or 128): how many values
      share a scale. ``kv_quant_start``: how many tokens at the start of each sequence are not
      quantised. See ``LanguageModel``.
    - ``distributed``: whether each of the machines on which ``mlx.launch`` started this program
      loads a part of the model; by default they do. Then only rank 0 returns: the others do as it
      says, and exit when it ends. A ``draft`` is loaded by rank 0 alone.

    The sampling options that the model's makers recommend are in ``recommended`` of the result.
    Invalid values in their ``generation_config.json`` are ignored, with a warning in the log.

    Raises ``OptionError``, ``LoadError`` or one of its subclasses, or with several machines
    ``MachineError``, with a message that says what to do.
    """
    check_kv(kv_bits, kv_group_size, kv_quant_start)
    kv = {"kv_bits": kv_bits, "kv_group_size": kv_group_size, "kv_quant_start": kv_quant_start}
    if max_context is not None:
        integer(None, 2).check("max_context", max_context)
    CacheDir.of(cache_dir, cache_dir_bytes)  # now, as reading weights takes long
    _wired(wired_limit)
    disk = {"cache_dir": _portable(cache_dir), "cache_dir_bytes": cache_dir_bytes}
    wanted = _Wanted(
        source=_portable(path_or_hf_repo),
        adapter=_portable(adapter),
        revision=revision,
        ignore_memory_limit=ignore_memory_limit,
        trust_remote_code=trust_remote_code,
        wired_limit=wired_limit,
        predictor=draft != "off",
        options={"cache_bytes": cache_bytes, **disk, **kv},
    )
    lm = _loaded(wanted, distributed)
    if isinstance(draft, (str, os.PathLike)) and draft not in DRAFTS:
        how: dict[str, Any] = {"trust_remote_code": trust_remote_code, **kv}  # and no head
        draft = load(draft, draft="off", wired_limit=None, distributed=False, **how)
    if max_context is not None:
        if lm.max_context is not None and max_context > lm.max_context:
            said = "%s is said to hold %d tokens; what is beyond may be nonsense"
            logger.warning(said, lm.name, lm.max_context)
        lm.max_context = max_context
    lm.draft = draft
    if wired_limit is not None:
        lm.runtime.wire(_wired(wired_limit))
    return lm


def _loaded(wanted: _Wanted, distributed: bool | None) -> LanguageModel:
    """The model, on all machines if there are several."""
    machines = join(wanted) if distributed is None or distributed else None
    if machines is not None:
        from .machines.share import shared

        return shared(machines, partial(_load, wanted), asdict(wanted))
    if distributed:
        raise OptionError(
            "distributed",
            "needs several machines, but this process was started alone; start it with mlx.launch",
        )
    return _load(wanted)


def join(wanted: _Wanted | None = None) -> Machines | None:
    """Join the machines on which ``mlx.launch`` started this program, if there are several.

    Only rank 0 returns. Another rank does as rank 0 says, and exits when that ends; so programs
    call this before anything else. ``wanted``: what this rank's program would load.
    """
    from .machines.group import Group

    if not Group.launched():
        return None
    from .machines.machines import Machines

    machines = Machines.here()
    if machines is not None and not machines.leads:
        from .loading.hub import hide_progress
        from .machines.following import Follower

        hide_progress()  # what rank 0 shows is enough

        own = iter([wanted])  # it is for the first model; the program gets no further

        def load_part(share: Share, told: Mapping[str, Any]) -> ModelRuntime:
            lm = _load(_Wanted(**told), share, own=next(own, None))
            if told["wired_limit"] is not None:
                lm.runtime.wire(_wired(told["wired_limit"]))
            return lm.runtime

        Follower(machines, load_part).serve()
    return machines


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """What to load, and how; the same on all machines. The paths are ``_portable``."""

    source: str | None
    adapter: str | None
    revision: str | None
    ignore_memory_limit: bool
    trust_remote_code: bool
    wired_limit: Wired
    predictor: bool
    """Whether the model's multi-token-prediction head is wanted, if it has one."""
    options: Mapping[str, Any]
    """Those of the ``LanguageModel``."""


def _load(wanted: _Wanted, share: Share | None = None, own: _Wanted | None = None) -> LanguageModel:
    """The model, or this rank's part of it; ``own``: what this rank's program wants, if known."""
    together = share.machines.together if share is not None else _alone
    adapter = None if wanted.adapter is None else path_of(wanted.adapter)

    def find() -> tuple[str, Checkpoint]:
        part = None
        if share is not None:
            from .loading.pair import part_of

            part = part_of(share.group, adapter=adapter is not None)
        name, found = _find(wanted.source, wanted.revision, part)
        if adapter is not None:
            check_adapter(adapter)
        if share is None and not wanted.ignore_memory_limit:
            from .loading.predictor import layout_of

            known = None if wanted.predictor else layout_of(found.config, found.tensors)
            left_out = sum(found.tensors[each] for each in (known[1] if known else ()))
            check_memory(f"the weights of {name}", found.nbytes - left_out)
        return name, found

    name, found = together(find)
    if share is not None:
        _agree(share, found, wanted if own is None else own)

    def build() -> LanguageModel:
        from .language_model import LanguageModel
        from .loading.pair import load_pair

        how: dict[str, Any] = {"predictor": wanted.predictor}
        if share is not None:  # a head that is not divided would run on one machine alone
            reading = partial(_reading, name, share.group.rank(), wanted.ignore_memory_limit)
            how = {"group": share.group, "reading": reading}
        trusted = wanted.trust_remote_code
        pair = load_pair(found, adapter=adapter, trust_remote_code=trusted, **how)
        if pair.generation.notice is not None:
            logger.warning("%s", pair.generation.notice)
        return LanguageModel(
            pair.model,
            pair.tokenizer,
            name=name,
            config=pair.config,
            recommended=pair.generation.recommended,
            predictor=pair.predictor,
            share=share,
            **wanted.options,
        )

    lm = together(build)
    if share is not None:
        from .machines.share import PartRuntime

        assert isinstance(lm.runtime, PartRuntime)
        together(lm.runtime.settle)
    return lm


def _alone(do: Callable[[], T]) -> T:
    return do()


def _agree(share: Share, found: Checkpoint, wanted: _Wanted) -> None:
    """Raise ``MachineError`` on all ranks if they differ in what they are about to load."""
    from .machines.machines import MODEL_FILE, agree, versions

    machines = share.machines
    files = machines.together(lambda: fingerprint(found.folder))
    facts: dict[str, Any] = {**versions(), **asdict(wanted), **wanted.options}
    facts |= {MODEL_FILE + name: digest for name, digest in files.items()}
    del facts["options"]
    agree(machines.group, facts)


def _portable(name: ModelName | None) -> Any:
    """A folder or hub id for other machines, on which the user's home may lie elsewhere."""
    if not isinstance(name, (str, os.PathLike)):
        return name  # refused later, unless it is None
    path, home = Path(name), path_of("~")
    if path.is_absolute() and path.is_relative_to(home):
        return f"~/{path.relative_to(home)}"
    if isinstance(name, os.PathLike) and not path.is_absolute():
        return f"./{path}"  # not a hub id
    return os.fspath(name)


def weights_of(path_or_hf_repo: ModelName | None = None, *, revision: str | None = None) -> int:
    """The bytes of a model's weights, or of one machine's part of several; fetches missing files.
    Raises as ``load``."""
    nbytes, machines = _find(path_or_hf_repo, revision)[1].nbytes, join()
    return nbytes if machines is None else math.ceil(nbytes / machines.group.size)


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
    """The name of a model, for messages, and its files; with ``part``, only the weights in that are
    fetched and checked."""
    if name is not None and not isinstance(name, (str, os.PathLike)):
        raise OptionError(
            "path_or_hf_repo", f"expected a folder or a hub id, got {type(name).__name__}"
        )
    path = DEMO if name is None else _folder(name)
    if name is not None and path is None:
        from .loading.hub import download

        text = os.fspath(name)
        return text, Checkpoint.open(download(text, revision, part), part)
    if revision is not None:
        what = "the demo model" if name is None else f"the folder {path}"
        raise OptionError(
            "revision", f"only a hub id has revisions, but this is {what}; leave it out"
        )
    assert path is not None
    found = Checkpoint.open(path, part)
    return "demo" if name is None else path.resolve().name, found


def _folder(name: ModelName) -> Path | None:
    """The folder that a name means; ``None`` for what may be a hub id."""
    text, path = os.fspath(name), path_of(name)
    if not text.strip():
        raise ModelNotFoundError("the model's name is empty; pass a folder or a hub id")
    if os.path.exists(path):  # noqa: PTH110 (the other raises for names that are too long)
        return path
    if isinstance(name, os.PathLike) or path.is_absolute() or text[0] in ".~":
        raise ModelNotFoundError(f"there is no folder {path}; check the path")
    return None


# ---- memory ----


def _reading(name: str, rank: int, ignore_limit: bool, arrays: list[Any]) -> Iterable[Any]:
    """The arrays of a rank's part of a model, in the order of reading; rank 0 shows a progress bar.

    How many bytes they need is known once mlx-lm has divided the model.
    """
    if not ignore_limit:
        nbytes = sum(array.nbytes for array in arrays)
        check_memory(f"the weights of this machine's part of {name}", nbytes)
    if rank:
        return arrays
    from .progress import reading

    return reading(arrays)


def _wired(limit: Wired) -> int | None:
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
