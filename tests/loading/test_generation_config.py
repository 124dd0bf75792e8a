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


TABLE = Path(__file__).parent.parent / "data" / "generation_configs.jsonl"
CASES = [json.loads(line) for line in TABLE.read_text(encoding="utf-8").splitlines()]
CASES += [
    {"file": '{"a":' + "[" * 100_000 + "]" * 100_000 + "}", "says": ["is nested too deeply"]},
    {"file": '{"temperature": 1' + "0" * 5000 + "}", "says": ["cannot be read as JSON"]},
]


def test_what_the_file_says_is_recommended_and_what_is_wrong_is_said_in_one_line(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ends = mlxgen.load(folder).vocabulary.eos
    for case in CASES:
        caplog.clear()
        (folder / "generation_config.json").write_bytes(case["file"].encode("latin-1"))
        with caplog.at_level(logging.WARNING, "mlxgen"):
            lm = mlxgen.load(folder)
        assert dict(lm.recommended) == case.get("recommended", {}), case
        assert lm.vocabulary.eos == ends.union(case.get("ends", ())), case
        said = [record.getMessage() for record in caplog.records]
        assert len(said) == ("says" in case) and "\n" not in "".join(said), case
        assert all(words in said[0] for words in case.get("says", ())), case


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


def test_a_model_has_it_or_a_pair_of_your_own_as_options_that_nobody_can_change(
    folder: Path,
) -> None:
    write(folder, {"temperature": 0.6, "top_k": 20, "eos_token_id": [5, 6]})
    lm = mlxgen.load(folder)
    assert dict(lm.recommended) == {"temperature": 0.6, "top_k": 20}
    with pytest.raises(TypeError):
        lm.recommended["temperature"] = 2.0
    assert {5, 6} <= lm.vocabulary.eos
    made = mlxgen.LanguageModel(lm.model, lm.tokenizer, recommended={"top_p": 0.9})
    assert dict(made.recommended) == {"top_p": 0.9}
    with pytest.raises(
        mlxgen.OptionError, match="top_p: expected a number above 0 and at most 1, got 9"
    ):
        mlxgen.LanguageModel(lm.model, lm.tokenizer, recommended={"top_p": 9})


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
