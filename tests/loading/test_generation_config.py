"""What a model's makers recommend, and what becomes of a file that is not as it should be."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mlxgen
from mlxgen.engine import Options
from mlxgen.loading.generation_config import GenerationConfig


def write(folder: Path, value: Any) -> None:
    (folder / "generation_config.json").write_text(json.dumps(value))


def read(folder: Path, value: Any, vocab_size: int | None = 100) -> GenerationConfig:
    write(folder, value)
    return GenerationConfig.read(folder, vocab_size=vocab_size)


@pytest.mark.parametrize(
    ("file", "recommended"),
    [
        ({}, {}),
        ({"eos_token_id": 2, "max_length": 20, "transformers_version": "4.51.0"}, {}),
        ({"temperature": None, "top_p": None, "do_sample": None}, {}),
        (
            {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.0},
            {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.0},
        ),
        (
            {"temperature": 0.6, "repetition_penalty": 1.05},
            {"temperature": 0.6, "repetition_penalty": 1.05},
        ),
        ({"do_sample": True}, {"temperature": 1.0}),
        ({"top_p": 0.9}, {"temperature": 1.0, "top_p": 0.9}),
        ({"do_sample": False, "temperature": 0.6, "top_p": 0.9}, {"temperature": 0.0}),
        (
            {"do_sample": False, "top_k": 5, "repetition_penalty": 1.1},
            {"temperature": 0.0, "repetition_penalty": 1.1},
        ),
        ({"top_k": -1, "temperature": 1}, {"temperature": 1.0, "top_k": 0}),
        ({"top_k": 40.0}, {"temperature": 1.0, "top_k": 40}),
        ({"top_p": 0}, {"temperature": 1.0, "top_p": 1e-9}),
    ],
)
def test_what_the_file_says_is_recommended(
    tmp_path: Path, file: dict[str, Any], recommended: dict[str, Any]
) -> None:
    found = read(tmp_path, file)
    assert (dict(found.recommended), found.notice) == (recommended, None)


def test_what_cannot_hold_is_named_in_one_line_and_the_rest_stays(tmp_path: Path) -> None:
    wrong = {
        "temperature": "hot\n",
        "top_p": 1.5,
        "top_k": 2.5,
        "min_p": True,
        "repetition_penalty": 0,
        "do_sample": 1,
        "eos_token_id": [7, "x", -1, 100, True, 9.0],
    }
    found = read(tmp_path, wrong)
    assert dict(found.recommended) == {} and found.end_tokens == (7, 9)
    assert found.notice is not None and "\n" not in found.notice
    assert str(tmp_path / "generation_config.json") in found.notice
    assert all(f"{name}: " in found.notice for name in wrong)

    found = read(tmp_path, {"temperature": 0.7, "top_p": 7, "eos_token_id": "7"})
    assert dict(found.recommended) == {"temperature": 0.7} and found.end_tokens is None


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text("a\n\x1bé", max_size=300),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3)
    ),
    max_leaves=5,
)
NAMES = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "do_sample")


@given(st.dictionaries(st.sampled_from([*NAMES, "eos_token_id"]), values), st.integers(1, 50))
def test_whatever_is_in_the_file_the_result_is_valid(file: dict[str, Any], vocab_size: int) -> None:
    with TemporaryDirectory() as folder:
        found = read(Path(folder), file, vocab_size)
    Options.of(dict(found.recommended))
    assert not found.recommended or "temperature" in found.recommended
    assert all(0 <= token < vocab_size for token in found.end_tokens or ())
    assert found.notice is None or (len(found.notice) < 2500 and found.notice.isprintable())


def test_a_loaded_model_has_it_as_options_that_nobody_can_change(folder: Path) -> None:
    write(folder, {"temperature": 0.6, "top_k": 20, "eos_token_id": [5, 6]})
    lm = mlxgen.load(folder)
    assert dict(lm.recommended) == {"temperature": 0.6, "top_k": 20}
    with pytest.raises(TypeError):
        lm.recommended["temperature"] = 2.0
    greedy = lm.generate("so", max_tokens=8).text
    assert greedy == lm.generate("so", max_tokens=8, temperature=0.0).text  # it is not in force
    drawn = lm.generate("so", max_tokens=8, seed=3, **lm.recommended).text
    assert drawn == lm.generate("so", max_tokens=8, seed=3, temperature=0.6, top_k=20).text
    assert {5, 6} <= lm.vocabulary.eos


def test_a_pair_of_your_own_may_come_with_recommendations(folder: Path) -> None:
    lm = mlxgen.load(folder)
    assert dict(lm.recommended) == {"temperature": 0}
    made = mlxgen.LanguageModel(lm.model, lm.tokenizer, recommended={"top_p": 0.9})
    assert dict(made.recommended) == {"top_p": 0.9}
    with pytest.raises(
        mlxgen.OptionError, match="top_p: expected a number above 0 and at most 1, got 9"
    ):
        mlxgen.LanguageModel(lm.model, lm.tokenizer, recommended={"top_p": 9})


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"{", "cannot be read as JSON"),
        (b"\xff\xfe{", "cannot be read as JSON"),
        (b"[1]", "does not hold a JSON object"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "is nested too deeply"),
        (b'{"temperature": 1' + b"0" * 5000 + b"}", "cannot be read as JSON"),
        (b'{"eos_token_id": {"a": 1}}', "eos_token_id: "),
        (b'{"eos_token_id": [-1]}', "eos_token_id: expected token ids below 305, got -1"),
        (b'{"temperature": NaN}', "temperature: expected a number from 0 to 100, got nan"),
    ],
)
def test_a_model_with_a_broken_file_loads_and_one_line_says_so(
    folder: Path, caplog: pytest.LogCaptureFixture, data: bytes, said: str
) -> None:
    ends = mlxgen.load(folder).vocabulary.eos
    (folder / "generation_config.json").write_bytes(data)
    with caplog.at_level(logging.WARNING, "mlxgen"):
        lm = mlxgen.load(folder)
    (record,) = caplog.records
    assert said in record.getMessage() and "\n" not in record.getMessage()
    assert lm.vocabulary.eos == ends and dict(lm.recommended) == {}
    assert lm.generate("so", max_tokens=3).usage.completion_tokens


def test_an_end_token_may_be_any_that_one_part_of_the_configuration_has_room_for(
    folder: Path,
) -> None:
    config = json.loads((folder / "config.json").read_text())
    last = config["vocab_size"] - 1
    config["text_config"] = {"vocab_size": 10}
    (folder / "config.json").write_text(json.dumps(config))
    write(folder, {"eos_token_id": [last, last + 1]})
    ends = mlxgen.load(folder).vocabulary.eos
    assert last in ends and last + 1 not in ends
