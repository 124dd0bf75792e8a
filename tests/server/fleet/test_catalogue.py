"""Which models there are, and which one a name means."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlxgen.errors import OptionError
from mlxgen.loading import hub
from mlxgen.server.errors import RequestError
from mlxgen.server.fleet.catalogue import Catalogue
from mlxgen.server.settings import Settings, read_settings
from tests.fakes.checkpoints import write_checkpoint


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models, one of them in the folder of its owner, and what is none."""
    root = tmp_path_factory.mktemp("shelf")
    write_checkpoint(root / "tiny")
    write_checkpoint(root / "owner" / "small")
    (root / "notes").mkdir()
    return root


def catalogue(**settings: object) -> Catalogue:
    return Catalogue.of(Settings(**settings))  # type: ignore[arg-type]


def names(found: Catalogue) -> list[tuple[str, ...]]:
    return [entry.listed for entry in found.entries]


def test_without_a_name_there_is_the_demo_model() -> None:
    found = catalogue(aliases=("x", "demo", "x"))
    assert names(found) == [("demo", "x")]
    assert found.meant(None) is found.meant("gpt-9") is found.meant("x") is found.default


def test_a_single_model_is_not_looked_at_before_it_is_loaded(tmp_path: Path) -> None:
    assert names(catalogue(models=("./not/here",))) == [("./not/here",)]
    assert names(catalogue(models=("owner/name",))) == [("owner/name",)]
    assert names(catalogue(models=(str(tmp_path),))) == [(tmp_path.name,)]


def test_models_are_called_by_their_folders_or_their_ids(
    shelf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "check", lambda repo: None)
    found = catalogue(models=(str(shelf / "owner" / "small"), "a/b"), model_dirs=(str(shelf),))
    assert names(found) == [("small", "owner/small"), ("a/b",), ("tiny",)]
    assert found.default.name == "small"
    for name in ("small", "owner/small", str(shelf / "owner" / "small"), None, "gpt-9", 5):
        assert found.meant(name) is found.default
    assert found.meant("tiny").folder == shelf / "tiny"
    assert [entry.max_context for entry in found.entries] == [4096, None, 4096]


def test_a_further_name_is_the_default_models_or_that_of_the_one_it_names(shelf: Path) -> None:
    found = catalogue(
        models=(str(shelf / "tiny"),),
        model_dirs=(str(shelf),),
        aliases=("gpt", "claude=owner/small", "haiku=claude"),
    )
    assert names(found) == [("tiny", "gpt"), ("owner/small", "claude", "haiku")]


def test_strict_names_are_refused_with_a_list_of_those_there_are(shelf: Path) -> None:
    found = catalogue(model_dirs=(str(shelf),), strict_model=True, aliases=("x",))
    with pytest.raises(RequestError) as caught:
        found.meant("gpt-9")
    error = caught.value
    assert (error.status, error.param, error.code) == (404, "model", "model_not_found")
    assert error.message.endswith("'gpt-9' here, only 'tiny', 'x' and 'owner/small'")
    assert found.meant(str(shelf / "tiny")) is found.default


def test_what_cannot_be_served_is_refused_at_the_start(shelf: Path, tmp_path: Path) -> None:
    tiny = str(shelf / "tiny")
    other = str(write_checkpoint(tmp_path / "tiny"))
    (tmp_path / "empty").mkdir()
    cases: list[tuple[dict[str, object], str, str]] = [
        ({"models": (tiny, "./not/here")}, "model", "there is no folder"),
        ({"models": (tiny, str(shelf / "notes"))}, "model", "no config.json"),
        ({"models": (tiny, other)}, "model", "are both called tiny; rename one"),
        ({"model_dirs": ("./not/here",)}, "model_dir", "there is no folder"),
        ({"model_dirs": (str(tmp_path / "empty"),)}, "model_dir", "no sub-folder"),
        ({"aliases": ("x=tiny",)}, "alias", "expected NAME=MODEL with one of demo, got 'x=tiny'"),
        ({"model_dirs": (str(shelf),), "aliases": ("owner/small",)}, "alias", "another model"),
    ]
    for settings, field, words in cases:
        with pytest.raises(OptionError, match=words) as caught:
            catalogue(**settings)
        assert caught.value.field == field


@pytest.mark.parametrize("option", ["--revision main", "--adapter somewhere", "--draft another"])
def test_what_is_meant_for_one_model_is_refused_for_several(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for several in ("--model a --model b", "--model-dir c"):
        with pytest.raises(SystemExit):
            read_settings([*several.split(), *option.split()], {})
        assert "belongs to one model, but there are several" in capsys.readouterr().err
    assert read_settings(["--model", "a", "--model-dir", "b", "--draft", "ngram"], {}).has_several
