"""Prompts in all their forms."""

from __future__ import annotations

import pytest

from mlxgen import Chat, OptionError, PromptError, Vocabulary
from mlxgen.engine.request.prompt import Prompt
from tests.fakes import byte_level_tokenizer, sentencepiece_tokenizer

MESSAGES = [{"role": "user", "content": "Hi"}]


def test_a_list_of_messages_is_a_chat_and_a_chat_may_say_more() -> None:
    vocabulary = Vocabulary.of(byte_level_tokenizer())
    plain = Prompt.of(MESSAGES, vocabulary)
    assert plain == Prompt.of(Chat(MESSAGES), vocabulary)
    assert vocabulary.decode(plain.tokens).endswith("<|im_start|>assistant\n")
    assert plain.opens_text
    going_on = [*MESSAGES, {"role": "assistant", "content": "Hel"}]
    goes_on = Prompt.of(Chat(going_on, continue_final_message=True), vocabulary)
    assert vocabulary.decode(goes_on.tokens).endswith("Hel")
    assert not goes_on.opens_text


def test_a_refused_chat_says_why() -> None:
    vocabulary = Vocabulary.of(byte_level_tokenizer())
    with pytest.raises(PromptError, match="unknown role"):
        Prompt.of([{"role": "nobody", "content": "x"}], vocabulary)
    with pytest.raises(OptionError, match="messages"):
        Prompt.of(Chat(MESSAGES, template={"messages": []}), vocabulary)


def test_the_leading_space_is_dropped_from_an_answer_and_kept_in_a_continuation() -> None:
    vocabulary = Vocabulary.of(sentencepiece_tokenizer())
    assert Prompt.of(MESSAGES, vocabulary).opens_text
    assert not Prompt.of("so", vocabulary).opens_text


def test_a_prompt_that_was_already_read_is_taken_as_it_is() -> None:
    vocabulary = Vocabulary.of(byte_level_tokenizer())
    read = Prompt.of(MESSAGES, vocabulary)
    assert Prompt.of(read, vocabulary) is read
