"""A model that fills a gap ends with one of its marks, which is not part of the text."""

from __future__ import annotations

import mlxgen
from tests.fakes import byte_level_tokenizer
from tests.fakes.scripted import ScriptedModel

MARKS = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>"]


def test_what_fills_a_gap_ends_at_a_mark() -> None:
    tokenizer = byte_level_tokenizer()
    tokenizer._tokenizer.add_special_tokens({"additional_special_tokens": MARKS})
    vocabulary = mlxgen.Vocabulary.of(tokenizer)
    infill = mlxgen.Infill.of(tokenizer)
    prompt = infill.prompt("def f(", "):\n")
    end = tokenizer._tokenizer.convert_tokens_to_ids("<|file_sep|>")
    said = [*vocabulary.continue_with(b"self, x"), end, *vocabulary.continue_with(b"more")]

    def script(history: tuple[int, ...]) -> list[int]:
        if list(history[: len(prompt)]) != prompt:  # a look at what kind of model it is
            return [0]
        return [said[len(history) - len(prompt)]]

    lm = mlxgen.LanguageModel(ScriptedModel(vocabulary.size, script), tokenizer)
    result = lm.generate(prompt, stop_tokens=infill.ends)
    assert (result.text, result.finish_reason, result.stop) == ("self, x", "stop", (end,))
