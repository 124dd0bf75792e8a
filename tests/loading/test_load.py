"""The loader: what it loads, what it refuses, and what it says then."""

from __future__ import annotations

import copy
import importlib
import inspect
import json
import logging
import re
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

import huggingface_hub
import huggingface_hub.constants
import mlx.core as mx
import mlx_lm.models
import mlx_lm.utils
import pytest
from benchmarks.architectures import ARCHITECTURES, configuration
from mlx_lm.utils import MODEL_REMAPPING

import mlxgen
from mlxgen.load import folder_of

from ..fakes import byte_level_tokenizer
from ..fakes.checkpoints import (
    arrays,
    quantised,
    tiny_config,
    tiny_model,
    write_adapter,
    write_checkpoint,
    write_random,
)
from ..fakes.muse_kernels import use_plain_kernels
from ..tables import DATA, table
from .conftest import change, hub_answers


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


def test_a_tokenizer_with_its_own_code_is_loaded_if_it_is_trusted(folder: Path) -> None:
    code = "from transformers import PreTrainedTokenizerFast as Fast\nclass Own(Fast): own = 5\n"
    (folder / "own.py").write_text(code)
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"auto_map": {"AutoTokenizer": [None, "own.Own"]}, "tokenizer_class": "Own"})
    )
    lm = mlxgen.load(folder, trust_remote_code=True)
    assert lm.tokenizer.own == 5 and lm.vocabulary.decode(lm.tokenizer.encode("so")) == "so"
    with pytest.raises(mlxgen.LoadError, match="trust_remote_code"):
        mlxgen.load(folder)


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
    lm = mlxgen.load(write_checkpoint(tmp_path / "q4", change=quantised))
    assert any(name.endswith("q_proj.scales") for name in arrays(lm.model))
    assert mx.isfinite(next_logits(lm)).all().item()


def test_weights_in_several_files_are_loaded(tmp_path: Path) -> None:
    folder = write_random(tmp_path / "model", "llama", files=2)
    assert mx.isfinite(next_logits(mlxgen.load(folder))).all().item()
    (folder / "model-1.safetensors").unlink()
    with pytest.raises(mlxgen.WeightsError, match=r"lacks model-1\.safetensors of its 2"):
        mlxgen.load(folder)


# ---- files that are changed ----

CHANGED = table("changed_models")
"""A case a line: what is done to which file of a model, and the error that says so, if any does."""


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


NOWHERE = "~nobody-of-this-name/model", Path("nowhere/model"), "/nowhere/at/all", "./nowhere"
NO_HUB_IDS = "no/such/folder", "what is this?", "x" * 5000


@pytest.mark.whole
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "name is empty"),
        *((name, f"there is no folder {Path(name)}") for name in NOWHERE),
        *((name, "hub id looks like owner/name") for name in NO_HUB_IDS),
    ],
)
def test_what_is_neither_a_folder_nor_a_hub_id_is_refused(
    name: str | Path, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)  # nobody is asked
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


@pytest.mark.parametrize(
    ("device", "used", "said"),
    [
        ("max_recommended_working_set_size", 0, r", but the device recommends at most 0\.00 GB"),
        ("total_memory", 20_000, r", but the device has 0\.00 GB"),
        ("total_memory", 30_000_000_000, r" beside the 30\.00 GB in use.* has 30\.00"),
    ],
)
def test_weights_that_do_not_fit_beside_what_is_in_use_are_refused_with_both_numbers(
    device: str, used: int, said: str, pristine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mx, "device_info", lambda: {device: max(used, 20_000)})
    monkeypatch.setattr(mx, "get_active_memory", lambda: used)
    with pytest.raises(mlxgen.MemoryLimitError, match=rf"tiny-llama need 0\.00 GB{said}"):
        mlxgen.load(pristine)
    assert mlxgen.load(pristine, ignore_memory_limit=True).name == "tiny-llama"


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


def test_a_hub_id_is_downloaded_with_its_revision(
    pristine: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = hub_answers(monkeypatch, fetched=pristine)
    assert mlxgen.load("someone/tiny", revision="v2").name == "someone/tiny"
    assert (asked[0]["repo"], asked[0]["revision"]) == ("someone/tiny", "v2")
    assert asked[0]["local_files_only"] is False
    assert "model*.safetensors" in asked[0]["allow_patterns"]
    assert caplog.records == []


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("case", table("hub_errors"), ids=lambda case: case["error"])
def test_what_the_hub_does_not_give_is_in_the_cache_or_refused(
    case: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hub_answers(monkeypatch, case["error"])
    with pytest.raises(mlxgen.LoadError, match=case["says"]) as caught:
        mlxgen.load("someone/else", revision="v9")
    assert type(caught.value) is getattr(mlxgen, case["kind"]) and "\n" not in str(caught.value)
    if case["error"] != "RevisionNotFoundError":
        with caplog.at_level(logging.WARNING, logger="mlxgen"):
            assert mlxgen.load("someone/tiny").name == "someone/tiny"
        said = "using the cached copy of someone/tiny" in caplog.text
        assert said is (case["error"] != "OfflineModeIsEnabled")  # which is so by choice


@pytest.mark.usefixtures("cache")
def test_whether_a_model_exists_is_found_out_without_fetching_it(
    pristine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert folder_of(str(pristine)) == pristine
    hub_answers(monkeypatch, "ConnectionError")
    assert folder_of("someone/tiny") is None  # it is in the cache
    with pytest.raises(mlxgen.LoadError, match="no complete copy"):
        folder_of("someone/else")
    hub_answers(monkeypatch)
    assert folder_of("someone/else") is None
