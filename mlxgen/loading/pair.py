"""mlx-lm's pair: the model and its tokenizer, built from their files.

Owns how mlx-lm is called, and the error for each of its failures. Must never know where
the files came from or what the pair is for. Invariant: the weights of a returned pair
have been evaluated.
"""

from __future__ import annotations

import codecs
import contextlib
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from . import mlx_lm_first  # noqa: F401

# isort: split
import mlx.core as mx
import mlx_lm.utils
from mlx.utils import tree_flatten
from transformers import PreTrainedConfig
from transformers.tokenization_utils_base import VERY_LARGE_INTEGER

from ..errors import LoadError, UnsupportedModelError, WeightsError, failing
from ..images import ImageProcessor
from .adapter import adapted, fused
from .checkpoint import Checkpoint, Part, config_of, missing_files, template_beside
from .generation_config import NAME as GENERATION_CONFIG
from .generation_config import GenerationConfig
from .model_config import levels
from .predictor import HeadPredictor, read_predictor, without_head
from .sharding import Group, Split

# Architectures whose ``shard`` computes what it cuts, which is too expensive for a trial.
_COMPUTING = ("muse_spark",)
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "*.tiktoken", "vocab.json", "vocab.txt")


class Pair(NamedTuple):
    """mlx-lm's model and ``TokenizerWrapper``; the configuration as mlx-lm understood it, the
    generation settings, and the model's multi-token-prediction head, if it has one."""

    model: Any
    tokenizer: Any
    config: Mapping[str, Any]
    generation: GenerationConfig
    predictor: HeadPredictor | None


def load_pair(
    source: Checkpoint,
    *,
    adapter: Path | None,
    trust_remote_code: bool,
    predictor: bool = False,
    group: Group | None = None,
    reading: Callable[[list[mx.array]], Iterable[Any]] = lambda arrays: [arrays],
) -> Pair:
    """Build the pair and evaluate the weights; with ``predictor``, those of the head as well.

    With a ``group`` of several machines: only the part of the model that this one runs. ``reading``
    gets all weights and yields those to read next; only these are read.

    Raises ``UnsupportedModelError`` if the architecture or tokenizer is not supported, or cannot be
    divided, ``WeightsError``, ``AdapterError``, and ``LoadError`` if the configuration does not
    describe a model. A head that cannot be read is left out, with a warning in the log.
    """
    known = [level.get("vocab_size") for level in levels(source.config)]
    sizes = [size for size in known if isinstance(size, int) and size > 0]
    generation = GenerationConfig.read(
        source.folder,
        vocab_size=max(sizes, default=None),
        end_tokens=source.config.get("eos_token_id"),
    )
    with _readable(source.folder, generation) as folder:
        # An adapter covers all layers, so all of them are loaded until it has been added.
        early = None if adapter is not None else group
        model, config = _load_model(folder, source, trust_remote_code, early)
        tokenizer = _load_tokenizer(folder, source, generation, trust_remote_code)
        head = read_predictor(source, folder, model) if predictor else None
    if adapter is not None:
        model = adapted(model, adapter)
    if group is not None:
        model = model if adapter is None else fused(model, adapter)
        Split.of(model, group).cut(model, group)
    named = cast(list[tuple[str, mx.array]], tree_flatten(model.parameters()))
    with failing(WeightsError, f"the weights in {source.folder} cannot be read"):
        for some in reading([array for _, array in named]):
            mx.eval(some)  # they are read only now
    return Pair(model, tokenizer, config, generation, head)


def part_of(group: Group, *, adapter: bool) -> Part:
    """A function that says which weight files this machine's part of a model needs.

    ``adapter``: the model gets one, which needs all layers. Raises ``UnsupportedModelError`` if the
    model cannot be divided, and ``LoadError`` if its configuration does not describe a model.
    """

    @cache  # it builds a model, without weights
    def files(folder: Path) -> Collection[str] | None:
        config = config_of(folder)
        if config.get("model_file") is not None:  # its own code, which is not trusted yet
            return None
        model, arguments = _classes(config)
        trial = model(arguments.from_dict(config))
        split = Split.of(trial, group)
        if config["model_type"] not in _COMPUTING:
            split.cut(trial, group)
        return None if adapter else split.files(trial, folder / "model.safetensors.index.json")

    return files


@contextlib.contextmanager
def _readable(folder: Path, generation: GenerationConfig) -> Iterator[Path]:
    """A folder that mlx-lm can read: without a faulty generation_config.json, and without the
    byte-order marks of JSON files."""
    marked = {file.name for file in folder.glob("*.json") if _is_marked(file)}
    if generation.is_readable and not marked:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="mlxgen-") as name:
        for file in folder.resolve().iterdir():
            copy = Path(name) / file.name
            if file.name == GENERATION_CONFIG and not generation.is_readable:
                continue
            if file.name in marked:
                copy.write_bytes(file.read_bytes().removeprefix(codecs.BOM_UTF8))
            else:
                copy.symlink_to(file)
        yield Path(name)


def _is_marked(file: Path) -> bool:
    with contextlib.suppress(OSError), file.open("rb") as opened:  # mlx-lm may not need it
        return opened.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8
    return False


def _load_tokenizer(
    folder: Path, source: Checkpoint, generation: GenerationConfig, trust_remote_code: bool
) -> Any:
    ends = list(generation.end_tokens) if generation.end_tokens else None

    def loaded(**more: Any) -> Any:
        # The model sets the length; one that is not a number would make every text fail
        how: dict[str, Any] = {
            "trust_remote_code": trust_remote_code,
            "model_max_length": VERY_LARGE_INTEGER,
        }
        how |= more
        try:
            return mlx_lm.utils.load_tokenizer(folder, how, eos_token_ids=ends)
        except Exception:  # transformers may refuse a config.json that mlx-lm takes
            with contextlib.suppress(Exception):
                how["config"] = PreTrainedConfig()
                return mlx_lm.utils.load_tokenizer(folder, how, eos_token_ids=ends)
            raise

    try:
        with failing(UnsupportedModelError, f"the tokenizer in {source.folder} cannot be loaded"):
            tokenizer = loaded()
            template = None if tokenizer.has_chat_template else template_beside(folder)
            return tokenizer if template is None else loaded(chat_template=template)
    except UnsupportedModelError as error:
        if "trust_remote_code" in str(error.__cause__):
            raise UnsupportedModelError(
                f"the tokenizer in {source.folder} has its own Python code; load it with"
                " trust_remote_code if you trust its makers"
            ) from error
        if any(any(source.folder.glob(pattern)) for pattern in _TOKENIZER_FILES):
            raise
        raise LoadError(
            f"{source.folder} has no tokenizer that can be loaded, such as tokenizer.json;"
            " download it again"
        ) from error


def _load_model(
    folder: Path, source: Checkpoint, trust_remote_code: bool, group: Group | None
) -> tuple[Any, Mapping[str, Any]]:
    """mlx-lm's model, its weights not evaluated yet; each failure has its own error.

    ``group``: take the weights of this machine's layers only, if the model is divided by layers.
    """
    if (code := source.config.get("model_file")) is not None and not trust_remote_code:
        raise UnsupportedModelError(
            f"{source.folder} has its own Python code ({code}); load it with trust_remote_code if"
            " you trust its makers"
        )

    def classes(config: Mapping[str, Any]) -> tuple[Any, Any]:
        model, arguments = _classes(config)
        return partial(made, model, config), arguments

    def made(make: Callable[[Any], Any], config: Mapping[str, Any], arguments: Any) -> Any:
        """A model that takes only some of the weights that mlx-lm found. mlx-lm builds all layers,
        and then calls its ``load_weights``."""
        model = make(arguments)
        split = None if group is None else Split.of(model, group)

        def load_weights(weights: Iterable[tuple[str, mx.array]], strict: bool = True) -> Any:
            del model.load_weights
            wanted = without_head(config, dict(weights))
            if split is not None:
                wanted = split.taken(model, group, wanted)
            return model.load_weights(list(wanted.items()), strict=strict)

        model.load_weights = load_weights
        return model

    unfit = f"do not fit its config.json (model_type {source.config['model_type']})"
    try:
        with failing(WeightsError, f"the weights in {source.folder} {unfit}"):
            loaded: tuple[Any, Mapping[str, Any]] = mlx_lm.utils.load_model(
                folder, lazy=True, get_model_classes=classes, trust_remote_code=trust_remote_code
            )
            return loaded
    except WeightsError as error:
        if (missing := missing_files(folder)) is not None:
            raise WeightsError(f"{missing} ({error})") from error
        raise


def _classes(config: Mapping[str, Any]) -> tuple[Any, Any]:
    """mlx-lm's classes for an architecture, each failure with its own error."""
    kind = config["model_type"]
    try:
        model, arguments = mlx_lm.utils._get_classes(config)
    except (ValueError, ImportError, AttributeError, SystemExit) as error:  # some of them exit
        raise UnsupportedModelError(
            f"the architecture {kind!r} is not supported by mlx-lm; try a newer mlx-lm"
            " or another model"
        ) from error
    calling = failing(LoadError, f"config.json does not describe a {kind} model")
    return calling(model), SimpleNamespace(from_dict=calling(arguments.from_dict))


def image_processor(model: Any, tokenizer: Any, config: Mapping[str, Any]) -> ImageProcessor | None:
    """The image processor of a model; ``None`` for a model that takes no images.

    A model takes images if mlx-lm has a processor for it, if it was loaded with its vision tower,
    and if the tokenizer knows the token of a patch.
    """
    if not config.get("vision_config") or not hasattr(model, "embed_inputs"):
        return None
    try:
        from mlx_lm.processors import load_processor
    except ImportError:  # an mlx-lm without processors
        return None
    own = load_processor(model, dict(config))
    token = None if own is None else tokenizer.convert_tokens_to_ids(own.image_token)
    if token is None or token == getattr(tokenizer, "unk_token_id", None):
        return None
    return ImageProcessor(own, int(token))
