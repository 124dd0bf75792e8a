"""The corpus: deterministic, and without the exam's prompts."""

import hashlib
import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from demo_model import batches, corpus, exam, forms, knowledge, train
from demo_model.drawing import is_for_exam, words
from tokenizers import Tokenizer


def test_tokens_of_examples_decode_to_their_text(pair: tuple[Any, Any]) -> None:
    _, tokenizer = pair
    for example in corpus.block(3, 0, 300):
        for text in (example.prompt, example.target):
            assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


LEARNT = "6d582052cc54c00a"
"""A hash of what the shipped models have learnt from."""


def test_the_corpus_is_what_the_shipped_models_have_learnt_from(demo: Path) -> None:
    examples = [tuple(each) for number in (-3, 0, 9, 20) for each in corpus.block(7, number, 400)]
    examples += [tuple(each) for each in corpus.block(7, 3, 400, corpus.DRAFTED)]
    assert hashlib.sha256(repr(examples).encode()).hexdigest()[:16] == LEARNT
    assert corpus.block(6, 0, 100) != corpus.block(7, 0, 100)
    assert json.loads((demo / "schemas.json").read_text(encoding="utf-8")) == forms.catalogue()


def test_a_step_has_the_same_batch_however_it_is_reached(pair: tuple[Any, Any]) -> None:
    tokenizer = Tokenizer.from_str(pair[1].backend_tokenizer.to_str())

    def make() -> batches.Batches:
        return batches.Batches(tokenizer, seed=5, tokens=512, copy_steps=2, block=256)

    one, other = make(), make()
    for step in (0, 3, 40):
        one.part(step, 0)
    a, b = one.part(41, 1), other.part(41, 1)
    assert a.tokens.tolist() == b.tokens.tolist()
    assert a.targets.tolist() == b.targets.tolist()


def test_targets_are_the_tokens_after_their_places(pair: tuple[Any, Any]) -> None:
    tokenizer = Tokenizer.from_str(pair[1].backend_tokenizer.to_str())
    made = batches.Batches(tokenizer, seed=5, tokens=1024, copy_steps=0, block=256)
    batch = made.part(3, 0)
    flat, places, targets = (
        np.array(array).reshape(-1) for array in (batch.tokens, batch.places, batch.targets)
    )
    followed = np.diff(places) == 1
    assert followed.sum() > 100
    assert (flat[places[1:]] == targets[:-1])[followed].all()


def test_unseen_names_and_cities_never_reach_training() -> None:
    unseen = set(words("unseen_names", "unseen_cities"))
    assert unseen.isdisjoint(words("names", "cities", "surnames", "heroes"))
    for example in corpus.block(7, 0, 3000):
        text = example.prompt + example.target
        assert unseen.isdisjoint(text.replace(".", " ").replace(",", " ").split())


def test_questions_of_the_exam_never_reach_training() -> None:
    asked = {
        question.prompt
        for task in exam.TASKS
        if task.name.startswith(("facts:", "records", "tool", "copying", "says"))
        for question in exam.questions(task, 100)
    }
    assert len(asked) > 500
    assert not any(example.prompt in asked for example in corpus.block(7, 0, 10_000))


def test_phrasings_of_the_exam_are_not_those_of_training() -> None:
    for kind in knowledge.KINDS:
        assert set(kind.phrasings).isdisjoint(kind.unseen)


def test_combinations_of_the_exam_are_kept_out_of_training() -> None:
    rng = Random(2)
    for _ in range(300):
        dialogue = forms.record(rng)
        record = json.loads(dialogue.answer)
        shape = next(one for one in forms.SHAPES if set(one.schema["required"]) == set(record))
        ordered = {key: record[key] for key in shape.schema["required"]}
        assert not is_for_exam(shape.name, ordered)


def test_the_rate_rises_stays_and_falls() -> None:
    rates = [train.rate_at(step, 1000) for step in range(1000)]
    assert rates[0] < 0.05
    assert rates[300] == 1.0
    assert rates[-1] < 0.02
    assert train.rate_at(100, 1000) == train.rate_at(100, 2000)
