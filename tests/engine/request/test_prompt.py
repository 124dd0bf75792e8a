"""Prompts in all their forms."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlxgen import Chat, OptionError, PromptError, Vocabulary
from mlxgen.chat.calls.use import ToolUse
from mlxgen.chat.turn import Turn, plan_turn
from mlxgen.engine.request.parts import ThinkingLimit
from mlxgen.engine.request.prompt import Prompt
from mlxgen.text import Thoughts
from tests.chat.families import MAKERS, dialect_of
from tests.chat.kit import tool
from tests.fakes import byte_level_tokenizer, sentencepiece_tokenizer

MESSAGES = [{"role": "user", "content": "Hi"}]
BEGUN = {"role": "assistant", "content": "Hel"}


def test_a_list_of_messages_is_a_chat_and_a_chat_may_say_more() -> None:
    vocabulary = Vocabulary.of(byte_level_tokenizer())
    plain = Prompt.of(MESSAGES, vocabulary)
    assert plain == Prompt.of(Chat(MESSAGES), vocabulary) and plain.opens_text
    assert Prompt.of(plain, vocabulary) is plain
    assert vocabulary.decode(plain.tokens).endswith("<|im_start|>assistant\n")
    goes_on = Prompt.of(Chat([*MESSAGES, BEGUN], continue_final_message=True), vocabulary)
    assert vocabulary.decode(goes_on.tokens).endswith("Hel") and not goes_on.opens_text
    spaced = Vocabulary.of(sentencepiece_tokenizer())
    assert Prompt.of(MESSAGES, spaced).opens_text and not Prompt.of("so", spaced).opens_text


def test_a_prompt_that_is_none_is_refused_with_where_it_is_wrong() -> None:
    vocabulary = Vocabulary.of(byte_level_tokenizer())
    with pytest.raises(PromptError, match="unknown role"):
        Prompt.of([{"role": "nobody", "content": "x"}], vocabulary)
    with pytest.raises(OptionError) as caught:
        Prompt.of(Chat(MESSAGES, template={"messages": []}), vocabulary)
    assert "messages" in str(caught.value)
    for ids, index in (([1, vocabulary.size], 1), ([0, 1, -1], 2), ([True], 0)):
        with pytest.raises(PromptError, match=rf"prompt\[{index}\]"):
            Prompt.of(ids, vocabulary)
    wide = Prompt.of([vocabulary.size], vocabulary, width=vocabulary.size + 1)
    assert wide.tokens == (vocabulary.size,)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("messages", [MESSAGES, [*MESSAGES, BEGUN]], ids=["new", "begun"])
@pytest.mark.parametrize("tools", [[], [tool()]], ids=["plain", "tools"])
def test_a_chat_knows_of_its_thinking_what_a_plan_of_it_knows(
    name: str, messages: list[dict[str, str]], tools: list[dict[str, object]]
) -> None:
    dialect = dialect_of(name)
    chat = Chat(messages, continue_final_message=messages[-1] is BEGUN)
    use = ToolUse(tools=tuple(tools), mode="auto", names=("get_weather",)) if tools else None
    plan = plan_turn(Turn(chat=chat, tools=use), dialect)
    read = Prompt.of(replace(chat, tools=tools or None), dialect.vocabulary)
    assert read == Prompt(plan.ids, plan.opens_text, plan.thinking)


@pytest.mark.parametrize("name", MAKERS)
def test_what_ends_the_thinking_when_its_budget_is_spent_ends_it_in_every_family(name: str) -> None:
    dialect = dialect_of(name)
    marks = plan_turn(Turn(chat=Chat(MESSAGES)), dialect).thinking
    if marks is None:
        return
    limit = ThinkingLimit.of(3, marks, dialect.vocabulary)
    assert limit is not None
    thoughts = Thoughts(replace(marks, state="reasoning"))
    thoughts.advance("Hm." + dialect.vocabulary.decode(limit.run))
    assert not thoughts.is_open and dialect.vocabulary.decode(limit.mark) == marks.end
