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
from mlxgen.loading.checkpoint import read_json
from mlxgen.loading.generation_config import GenerationConfig

from ..tables import table

CASES = [
    *table("generation_configs"),
    {"file": '{"a":' + "[" * 100_000 + "]" * 100_000 + "}", "says": ["is nested too deeply"]},
    {"file": '{"temperature": 1' + "0" * 5000 + "}", "says": ["cannot be read as JSON"]},
]


def test_what_the_file_says_is_recommended_and_what_is_wrong_is_said_in_one_line(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ends, config = mlxgen.load(folder).vocabulary.eos, read_json(folder / "config.json")
    for case in CASES:
        caplog.clear()
        (folder / "config.json").write_text(json.dumps({**config, **case.get("config", {})}))
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
        (Path(folder) / "generation_config.json").write_text(json.dumps(file))
        found = GenerationConfig.read(Path(folder), vocab_size=vocab_size)
    Options.of(dict(found.recommended))
    assert not found.recommended or "temperature" in found.recommended
    assert all(0 <= token < vocab_size for token in found.end_tokens or ())
    assert found.notice is None or (len(found.notice) < 2500 and found.notice.isprintable())


def test_a_model_has_it_or_a_pair_of_your_own_as_options_that_nobody_can_change(
    folder: Path,
) -> None:
    lm = mlxgen.load(folder)
    with pytest.raises(TypeError):
        lm.recommended["temperature"] = 2.0
    made = mlxgen.LanguageModel(lm.model, lm.tokenizer, recommended={"top_p": 0.9})
    assert dict(made.recommended) == {"top_p": 0.9}
    with pytest.raises(
        mlxgen.OptionError, match="top_p: expected a number above 0 and at most 1, got 9"
    ):
        mlxgen.LanguageModel(lm.model, lm.tokenizer, recommended={"top_p": 9})
