"""The corpus: deterministic, and without the exam's prompts."""

import hashlib
import json
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from demo_model import batches, corpus, drawing, exam, forms, knowledge
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


def test_a_step_has_the_same_batches_each_time_and_learns_what_follows(words: Tokenizer) -> None:
    (flat, places, targets), again = (
        [np.array(array).reshape(-1) for array in next(islice(made, 21, None))[1]]
        for made in (
            batches.steps(words, 5, tokens=1024, copy_steps=2, block=256) for _ in range(2)
        )
    )
    assert np.array_equal(flat, again[0]) and np.array_equal(targets, again[2])
    followed = np.diff(places) == 1
    assert followed.sum() > 100
    assert (flat[places[1:]] == targets[:-1])[followed].all()


def test_unseen_names_and_cities_never_reach_training() -> None:
    unseen = set(drawing.words("unseen_names", "unseen_cities"))
    assert unseen.isdisjoint(drawing.words("names", "cities", "surnames", "heroes"))
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


def test_phrasings_and_combinations_of_the_exam_are_not_those_of_training() -> None:
    for kind in knowledge.KINDS:
        assert set(kind.phrasings).isdisjoint(kind.unseen)
    rng = Random(2)
    for _ in range(300):
        dialogue = forms.record(rng)
        record = json.loads(dialogue.answer)
        shape = next(one for one in forms.SHAPES if set(one.schema["required"]) == set(record))
        ordered = {key: record[key] for key in shape.schema["required"]}
        assert not drawing.is_for_exam(shape.name, ordered)
