"""A chat is what the model's chat template makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from mlxgen import Chat, PromptError, Vocabulary
from mlxgen.chat.dialect import ending_turns
from tests.fakes import byte_level_tokenizer

BYTE_LEVEL = Vocabulary.of(byte_level_tokenizer())
MESSAGES = [{"role": "user", "content": "so sad"}]


def test_a_chat_is_what_the_template_makes_of_it() -> None:
    text = "<|im_start|>user\nso sad<|im_end|>\n<|im_start|>assistant\n"
    assert Chat(MESSAGES).tokens(BYTE_LEVEL) == BYTE_LEVEL.encode(text)
    without = Chat(MESSAGES, add_generation_prompt=False).tokens(BYTE_LEVEL)
    assert without == BYTE_LEVEL.encode("<|im_start|>user\nso sad<|im_end|>\n")


def test_the_last_message_can_be_left_open() -> None:
    messages = [*MESSAGES, {"role": "assistant", "content": "the"}]
    tokens = Chat(messages, continue_final_message=True).tokens(BYTE_LEVEL)
    assert b"".join(map(BYTE_LEVEL.piece, tokens)).endswith(b"<|im_start|>assistant\nthe")


def test_what_the_template_refuses_is_said_with_its_reason() -> None:
    with pytest.raises(PromptError, match="unknown role wizard"):
        Chat([{"role": "wizard", "content": "hi"}]).tokens(BYTE_LEVEL)


@pytest.mark.parametrize("messages", [[], ["hi"], [None]])
def test_what_is_not_a_chat_is_refused(messages: list[Any]) -> None:
    with pytest.raises(PromptError, match="list of chat messages"):
        Chat(messages).tokens(BYTE_LEVEL)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"content": "hi"}, r"messages\[1\].role: expected a role such as 'user', got none"),
        ({"role": 5, "content": "hi"}, r"messages\[1\].role: .* got int"),
        ({"role": "user", "content": 5}, r"messages\[1\].content: expected text, got int"),
    ],
)
def test_a_message_without_role_or_text_is_refused_with_its_place(
    message: dict[str, Any], said: str
) -> None:
    with pytest.raises(PromptError, match=said):
        Chat([*MESSAGES, message]).tokens(BYTE_LEVEL)


def test_half_a_character_in_a_message_is_refused_with_its_place() -> None:
    for half in (
        {"role": "user", "content": "a\ud83d"},
        {"role": "user", "content": [{"\udfff": 1}]},
    ):
        with pytest.raises(PromptError, match=r"messages\[1\].content: contains a lone surrogate"):
            Chat([*MESSAGES, half]).tokens(BYTE_LEVEL)


def test_a_model_without_a_template_cannot_chat() -> None:
    raw = byte_level_tokenizer()._tokenizer
    raw.chat_template = None
    with pytest.raises(PromptError, match="no chat template"):
        Chat(MESSAGES).tokens(Vocabulary.of(raw))


def test_the_mark_that_ends_a_turn_ends_an_answer_though_the_configuration_forgets_it() -> None:
    def said(template: str, ends: set[int]) -> set[str]:
        tokenizer = byte_level_tokenizer()
        tokenizer._tokenizer.chat_template = template
        tokenizer.eos_token_ids = ends
        vocabulary = ending_turns(Vocabulary.of(tokenizer))
        assert vocabulary.eos == tokenizer.eos_token_ids
        return {vocabulary.piece(token).decode() for token in vocabulary.eos}

    each = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    start = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    marked = f"{each}<|im_end|>\n{{% endfor %}}{start}"
    own = byte_level_tokenizer()
    end = own.convert_tokens_to_ids("<|endoftext|>")
    assert said(marked, {end}) == {"<|endoftext|>", "<|im_end|>"}
    assert said(marked.replace("<|im_end|>", "\n<|im_end|>"), {end}) == {
        "<|endoftext|>",
        "<|im_end|>",
    }
    assert said(f"{each}<|im_end|><|endoftext|>{{% endfor %}}{start}", {end}) == {"<|endoftext|>"}
    assert said(f"{each}\n{{% endfor %}}{start}", {end}) == {"<|endoftext|>"}
    assert said("{{ raise_exception('no') }}", {end}) == {"<|endoftext|>"}
