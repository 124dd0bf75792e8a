"""The loader: what it loads, what it refuses, and what it says then."""

from __future__ import annotations

import codecs
import copy
import importlib
import inspect
import json
import logging
import re
import shutil
import struct
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import huggingface_hub.constants
import mlx.core as mx
import mlx.nn as nn
import mlx_lm.models
import mlx_lm.utils
import pytest
from benchmarks.architectures import ARCHITECTURES, configuration
from huggingface_hub import errors
from mlx_lm.utils import MODEL_REMAPPING

import mlxgen
from mlxgen.load import folder_of, weights_of
from mlxgen.loading import hub

from ..fakes import byte_level_tokenizer
from ..fakes.checkpoints import (
    arrays,
    tiny_config,
    tiny_model,
    write_adapter,
    write_checkpoint,
)
from ..fakes.muse_kernels import use_plain_kernels

DATA = Path(__file__).parent.parent / "data"


def change_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    config.update(changes)
    kept = {key: value for key, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(kept))


def next_logits(lm: mlxgen.LanguageModel) -> mx.array:
    logits: mx.array = lm.model(mx.array([[1, 2, 3]]))
    return logits


# ---- what loads ----


def test_a_folder_is_loaded_with_its_weights_tokenizer_and_name(folder: Path) -> None:
    lm = mlxgen.load(folder)
    expected = tiny_model(json.loads((folder / "config.json").read_text()))
    assert mx.array_equal(next_logits(lm), expected(mx.array([[1, 2, 3]]))).item()
    assert lm.name == "tiny-llama"
    assert lm.max_context == 4096
    assert lm.tokenizer.decode(lm.tokenizer.encode("so sad")) == "so sad"
    assert len(lm.vocabulary.eos) == 2
    (folder / "model.safetensors").write_bytes(b"")  # whoever reads now comes too late
    assert mx.isfinite(next_logits(lm)).all().item()


def test_a_model_that_mlx_lm_cannot_run_on_this_device_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = mlxgen.load(folder)

    def without_metal(*given: Any, **more: Any) -> mx.array:
        raise RuntimeError("[metal_kernel] No Metal back-end.")

    monkeypatch.setattr(type(lm.model), "__call__", without_metal)
    with pytest.raises(mlxgen.ModelError, match=r"tiny-llama fails on this device: .*No Metal"):
        lm.generate("so", max_tokens=1)


SIZES: dict[str, Any] = json.loads((DATA / "architectures.json").read_text(encoding="utf-8"))
"""Small sizes by all names that mlx-lm's architectures have for them, the architectures that these
fit, and what others need besides; a text model may be that of another architecture."""
COMMON, FIT = SIZES.pop("sizes"), SIZES.pop("fit")
VOCABULARIES = ("vocab_size", "num_vocab", "embedding_size", "vocab_size_per_layer_input")
NEEDS_METAL, NEEDS_A_PACKAGE = "bitnet", "olmo"
TRIED = {*FIT, *SIZES, *ARCHITECTURES}
QUICK = (*ARCHITECTURES, "kimi_vl", "gear")  # the last has a config.json that transformers refuses


def small(name: str, size: int) -> dict[str, Any]:
    """A small ``config.json`` of an architecture, with a vocabulary of this size."""
    kind = MODEL_REMAPPING.get(name, name)
    if kind in ARCHITECTURES:
        return {**configuration(kind, vocab_size=size), "model_type": name}
    sizes = {**COMMON, **dict.fromkeys(VOCABULARIES, size)}
    own = dict(SIZES.get(kind, {}))
    if "text_config" in own:
        text = own["text_config"]
        own["text_config"] = small(text, size) if isinstance(text, str) else sizes | text
    taken = inspect.signature(importlib.import_module(f"mlx_lm.models.{kind}").ModelArgs).parameters
    fitting = {each: value for each, value in sizes.items() if each in taken}
    return {"model_type": name, "vocab_size": size, **fitting, **own}


@pytest.mark.skipif(version("mlx-lm") != "0.32.2", reason="the table has those of mlx-lm 0.32.2")
def test_every_architecture_of_mlx_lm_is_tried() -> None:
    files = Path(mlx_lm.models.__path__[0]).glob("*.py")
    known = {
        file.stem
        for file in files
        if re.search(r"^class Model\b|import Model$", file.read_text(), re.M)
    }
    assert known - TRIED == {NEEDS_A_PACKAGE}


@pytest.mark.filterwarnings("ignore")  # of transformers, about what configurations are to say
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name in sorted({*TRIED, *MODEL_REMAPPING})
    ],
)
def test_a_folder_of_each_architecture_is_loaded_as_by_mlx_lm(name: str, tmp_path: Path) -> None:
    tokenizer = byte_level_tokenizer()
    config = small(name, len(tokenizer))
    module = importlib.import_module(f"mlx_lm.models.{MODEL_REMAPPING.get(name, name)}")
    if name == "muse_spark":
        use_plain_kernels()
    mx.random.seed(1)
    model = module.Model(module.ModelArgs.from_dict(copy.deepcopy(config)))
    mx.save_safetensors(str(tmp_path / "model.safetensors"), arrays(model))
    (tmp_path / "config.json").write_text(json.dumps(config))
    tokenizer.save_pretrained(tmp_path)
    theirs, _ = mlx_lm.utils.load_model(tmp_path)
    lm = mlxgen.load(tmp_path)
    if name == NEEDS_METAL and not mx.metal.is_available():
        with pytest.raises(mlxgen.ModelError, match="fails on this device"):
            lm.generate([1, 2, 3], max_tokens=3)
        return
    ours, expected = next_logits(lm), theirs(mx.array([[1, 2, 3]]))
    assert mx.allclose(ours, expected, rtol=1e-3, atol=1e-4).item()
    assert len(lm.generate([1, 2, 3], max_tokens=3, ignore_eos=True).tokens) == 3


def test_a_chat_template_may_be_in_a_file_of_its_own(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    assert not mlxgen.load(folder).tokenizer.has_chat_template
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    said = [{"role": "user", "content": "so"}]
    lm = mlxgen.load(folder)
    assert lm.vocabulary.decode(mlxgen.Chat(said).tokens(lm.vocabulary)) == "<user>so"


def test_a_tokenizer_with_its_own_code_and_vocabulary_is_loaded_if_it_is_trusted(
    folder: Path,
) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "words.own").write_text("abcdefgh")
    (folder / "own.py").write_text(OWN_TOKENIZER)
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"auto_map": {"AutoTokenizer": ["own.Own", None]}, "tokenizer_class": "Own"})
    )
    assert mlxgen.load(folder, trust_remote_code=True).vocabulary.decode([1, 0, 3]) == "bad"
    with pytest.raises(mlxgen.LoadError, match="trust_remote_code"):
        mlxgen.load(folder)


OWN_TOKENIZER = """
from pathlib import Path
from transformers import PythonBackend

class Own(PythonBackend):
    vocab_files_names = {"vocab_file": "words.own"}

    def __init__(self, vocab_file, **more):
        self.words = Path(vocab_file).read_text()
        super().__init__(**more)

    @property
    def vocab_size(self):
        return len(self.words)

    def get_vocab(self):
        return {word: i for i, word in enumerate(self.words)} | self.added_tokens_encoder

    def _tokenize(self, text):
        return list(text)

    def _convert_token_to_id(self, token):
        return self.words.find(token)

    def _convert_id_to_token(self, index):
        return self.words[index] if index < len(self.words) else None

    def convert_tokens_to_string(self, tokens):
        return "".join(tokens)
"""


def test_the_context_may_be_smaller_or_with_a_warning_larger(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert mlxgen.load(folder, max_context=9).max_context == 9
    assert not caplog.records
    assert mlxgen.load(folder, max_context=9999).max_context == 9999
    assert "4096 tokens" in caplog.text


def test_ids_that_a_model_may_draw_are_a_prompt(folder: Path) -> None:
    lm = mlxgen.load(folder)
    wide = mlxgen.LanguageModel(tiny_model(tiny_config(len(lm.tokenizer) + 40)), lm.tokenizer)
    beyond = wide.vocab_size - 1
    assert wide.generate([1, beyond], max_tokens=2, prefix=[beyond]).tokens[0] == beyond
    with pytest.raises(mlxgen.PromptError, match="prompt"):
        wide.generate([1, beyond + 1])


def test_a_quantised_model_is_loaded(tmp_path: Path) -> None:
    def quantise(model: nn.Module, config: dict[str, Any]) -> None:
        config["quantization"] = {"group_size": 32, "bits": 4}
        nn.quantize(model, group_size=32, bits=4)

    lm = mlxgen.load(write_checkpoint(tmp_path / "q4", change=quantise))
    assert any(name.endswith("q_proj.scales") for name in arrays(lm.model))
    assert mx.isfinite(next_logits(lm)).all().item()


def test_weights_in_several_files_are_loaded(folder: Path) -> None:
    weights = mx.load(str(folder / "model.safetensors"))
    assert isinstance(weights, dict)
    names = sorted(weights)
    parts = {
        "model-00001-of-00002.safetensors": names[:3],
        "model-00002-of-00002.safetensors": names[3:],
    }
    for file, part in parts.items():
        mx.save_safetensors(str(folder / file), {name: weights[name] for name in part})
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {name: file for file, part in parts.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert mx.isfinite(next_logits(mlxgen.load(folder))).all().item()

    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(mlxgen.WeightsError, match=r"lacks model-00002-of-00002.* of its 2"):
        mlxgen.load(folder)


# ---- files that are changed ----

CHANGED = [
    json.loads(line)
    for line in (DATA / "changed_models.jsonl").read_text(encoding="utf-8").splitlines()
]
"""A case a line: what is done to which file of a model, and the error that says so, if any does."""


def nest(folder: Path, name: str, depth: int) -> None:
    text = '{"a":' + "[" * depth + "]" * depth + "}"
    head = struct.pack("<Q", len(text)) if name.endswith(".safetensors") else b""
    (folder / name).write_bytes(head + text.encode())


def change(folder: Path, verb: str, what: Any) -> None:
    """Does one thing to a file; bytes are written as the characters of these numbers."""
    name, *more = [what] if isinstance(what, str) else what
    file = folder / name
    if verb == "config":
        change_config(folder, **what)
    elif verb == "nest":
        nest(folder, what, 100_000)
    elif verb == "mark":
        for each in folder.glob(what):
            each.write_bytes(codecs.BOM_UTF8 + each.read_bytes())
    elif verb == "remove":
        file.unlink()
    elif verb == "rename":
        file.rename(folder / more[0])
    elif verb == "folder":
        file.mkdir()
    elif verb == "link":
        file.symlink_to(more[0])
    elif verb == "write":
        file.write_bytes(more[0].encode("latin-1"))
    elif verb == "cut":
        file.write_bytes(file.read_bytes()[: -int(more[0])])
    else:  # a tensor is added, or all with such an end are lost
        loaded = mx.load(str(file))
        assert isinstance(loaded, dict)
        kept = {k: v + 0 for k, v in loaded.items() if verb == "add" or not k.endswith(more[0])}
        extra = {more[0]: mx.zeros((2, 2))} if verb == "add" else {}
        mx.save_safetensors(str(file), kept | extra)


@pytest.mark.parametrize("case", CHANGED, ids=[case["what"] for case in CHANGED])
def test_a_broken_model_is_refused_in_one_line_and_what_is_harmless_loads(
    case: dict[str, Any], folder: Path
) -> None:
    expected, adapter = next_logits(mlxgen.load(folder)), None
    if case.get("error") == "AdapterError":
        adapter = write_adapter(folder / "adapter", folder)
    for verb, what in case["do"].items():
        change(folder, verb, what)
    if "error" in case:
        with pytest.raises(mlxgen.LoadError, match=case["says"]) as caught:
            mlxgen.load(folder, adapter=adapter)
        assert type(caught.value) is getattr(mlxgen, case["error"])
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 500
    else:
        lm = mlxgen.load(folder)
        if "context" in case:
            assert lm.max_context == case["context"]
        else:
            assert mx.array_equal(next_logits(lm), expected).item()
        assert all(0 <= token < lm.vocab_size for token in lm.vocabulary.eos)
        assert lm.generate("so", max_tokens=2).finish_reason in ("length", "stop")


@pytest.mark.parametrize(
    "name",
    ["", "/nowhere/at/all", "./nowhere", "~nobody-of-this-name/model", Path("nowhere/model")],
)
def test_a_path_that_is_not_there_is_refused(name: str | Path) -> None:
    said = f"there is no folder {Path(name)}" if name else "name is empty"
    for look in (mlxgen.load, folder_of):
        with pytest.raises(mlxgen.ModelNotFoundError, match=said):
            look(name)  # type: ignore[arg-type]


def test_a_user_without_a_home_folder_loads_models(pristine: Path, homeless: None) -> None:
    assert mlxgen.load(str(pristine)).name == pristine.name
    with pytest.raises(mlxgen.ModelNotFoundError, match="there is no folder ~/models"):
        mlxgen.load("~/models")


def test_wrong_options_of_load_are_named(pristine: Path) -> None:
    cases: list[tuple[str, Any, dict[str, Any]]] = [
        *(("path_or_hf_repo", wrong, {}) for wrong in (5, b"model", object())),
        *(("revision", name, {"revision": "main"}) for name in (None, pristine)),
        *(("max_context", pristine, {"max_context": wrong}) for wrong in (1, 2.5, True, "9")),
    ]
    for field, name, options in cases:
        with pytest.raises(mlxgen.OptionError) as caught:
            mlxgen.load(name, **options)
        assert caught.value.field == field


# ---- memory ----


def test_weights_that_do_not_fit_are_refused_with_both_numbers(
    pristine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"max_recommended_working_set_size": 20_000}
    monkeypatch.setattr(mx, "device_info", lambda: small)
    monkeypatch.setattr(mx, "get_active_memory", lambda: 0)
    with pytest.raises(mlxgen.MemoryLimitError) as caught:
        mlxgen.load(pristine)
    assert "tiny-llama need 0.00 GB, but the device recommends at most 0.00 GB" in str(caught.value)
    assert mlxgen.load(pristine, ignore_memory_limit=True).name == "tiny-llama"


def test_what_is_in_use_counts_too(pristine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx, "device_info", lambda: {"total_memory": 30_000_000_000})
    monkeypatch.setattr(mx, "get_active_memory", lambda: 30_000_000_000)
    with pytest.raises(mlxgen.MemoryLimitError, match=r"beside the 30\.00 GB in use.* has 30\.00"):
        mlxgen.load(pristine)


# ---- the hub ----

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the hub that holds ``someone/tiny``."""
    repo = tmp_path / "hub" / "models--someone--tiny"
    shutil.copytree(pristine, repo / "snapshots" / COMMIT)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(COMMIT)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def hub_answers(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None, fetched: Path | None = None
) -> list[dict[str, Any]]:
    """The hub knows every model, or answers every question with ``error``; returns what is to be
    ``fetched`` from it, and fails if nothing may be."""
    asked: list[dict[str, Any]] = []

    def model_info(self: object, repo: str, **options: Any) -> None:
        if error is not None:
            raise error

    def snapshot_download(repo: str, **options: Any) -> str:
        assert fetched is not None, "nothing is to be fetched"
        asked.append({"repo": repo, **options})
        return str(fetched)

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    if error is None:
        monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    return asked


def hub_error(kind: type[errors.HfHubHTTPError]) -> Exception:
    response: Any = SimpleNamespace(headers={}, request=None)
    return kind("no", response=response)


def test_a_hub_id_is_downloaded_with_its_revision(
    pristine: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = hub_answers(monkeypatch, None, pristine)
    assert mlxgen.load("someone/tiny", revision="v2").name == "someone/tiny"
    assert (asked[0]["repo"], asked[0]["revision"]) == ("someone/tiny", "v2")
    assert asked[0]["local_files_only"] is False
    assert "model*.safetensors" in asked[0]["allow_patterns"]
    assert caplog.records == []


NO_ROUTE, OFFLINE = ConnectionError("no route"), errors.OfflineModeIsEnabled("offline")


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (NO_ROUTE, mlxgen.LoadError, r"no complete copy.* cannot be reached \(no route\)"),
        (OFFLINE, mlxgen.LoadError, "HF_HUB_OFFLINE is set"),
        (
            hub_error(errors.RepositoryNotFoundError),
            mlxgen.ModelNotFoundError,
            "hub does not know this model",
        ),
        (
            hub_error(errors.GatedRepoError),
            mlxgen.ModelNotFoundError,
            "accepted its terms.*hf auth login",
        ),
        (
            hub_error(errors.RevisionNotFoundError),
            mlxgen.ModelNotFoundError,
            "has no revision v9",
        ),
    ],
)
def test_what_the_hub_does_not_give_is_in_the_cache_or_refused(
    error: Exception,
    kind: type[mlxgen.LoadError],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    hub_answers(monkeypatch, error)
    with pytest.raises(mlxgen.LoadError, match=message) as caught:
        mlxgen.load("someone/else", revision="v9")
    assert type(caught.value) is kind and "\n" not in str(caught.value)
    if "has no revision" not in message:
        with caplog.at_level(logging.WARNING, logger="mlxgen"):
            assert mlxgen.load("someone/tiny").name == "someone/tiny"
        said = "using the cached copy of someone/tiny" in caplog.text
        assert said is (error is not OFFLINE)  # which is so by choice


@pytest.mark.usefixtures("cache")
def test_whether_a_model_exists_is_found_out_without_fetching_it(
    pristine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert folder_of(str(pristine)) == pristine
    hub_answers(monkeypatch, NO_ROUTE)
    assert folder_of("someone/tiny") is None  # it is in the cache
    with pytest.raises(mlxgen.LoadError, match="no complete copy"):
        folder_of("someone/else")
    hub_answers(monkeypatch, None)
    assert folder_of("someone/else") is None


@pytest.mark.parametrize("name", ["no/such/folder", "what is this?", "x" * 5000])
def test_what_is_neither_a_folder_nor_a_hub_id_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(hub, "snapshot_download", None)  # nobody is asked for such a name
        with pytest.raises(mlxgen.ModelNotFoundError, match="hub id looks like owner/name"):
            mlxgen.load(name)


def test_the_bytes_of_the_weights_are_known_before_they_are_read(pristine: Path) -> None:
    assert weights_of(pristine) == mlxgen.load(pristine).runtime.weight_bytes
