"""Answers to conversations: what of them is run anew, and what they are made of."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from mlx_lm.models.cache import ArraysCache, KVCache, RotatingKVCache

import mlxgen
from mlxgen.chat import Chat
from mlxgen.chat.events import Ended
from mlxgen.errors import GrammarError, OptionError, PromptError
from mlxgen.terminal.answer import Answer, Answerer
from mlxgen.terminal.conversation import Conversation

from ..fakes.chatting import FORGETFUL, THINK, THOUGHT, Chatter

END = 1  # an end token is one; all other text is a token for each byte
CACHES: dict[str, Callable[[], list[Any]]] = {
    "plain": lambda: [KVCache()],
    "window": lambda: [RotatingKVCache(max_size=1000)],
    "recurrent": lambda: [ArraysCache(1)],
}


@pytest.fixture(scope="module")
def demo() -> mlxgen.LanguageModel:
    return mlxgen.load()


def answer(answerer: Answerer, conversation: Conversation, stop_after: int | None = None) -> Answer:
    """Answer the message that waits; of ``stop_after`` tokens take only so many."""
    given = answerer.begin(conversation)
    for count, _ in enumerate(given, 1):
        if count == stop_after:
            break
    given.finish()
    given.close()
    conversation.answered(given.text, given.reasoning)
    return given


def ask(
    answerer: Answerer, conversation: Conversation, message: str, stop_after: int | None = None
) -> Answer:
    conversation.ask(message)
    return answer(answerer, conversation, stop_after)


def prompt(lm: mlxgen.LanguageModel, conversation: Conversation) -> list[int]:
    return Chat(conversation.messages, template=conversation.template).tokens(lm.vocabulary)


def in_common(first: list[int], second: list[int]) -> int:
    pairs = zip(first, second, strict=False)
    return next(
        (i for i, (one, two) in enumerate(pairs) if one != two), min(map(len, (first, second)))
    )


# ---- what is run anew ----


@pytest.mark.parametrize("kind", CACHES)
def test_the_next_message_runs_nothing_of_what_was_said(kind: str) -> None:
    chatter = Chatter(make_cache=CACHES[kind])
    answerer, conversation = Answerer(chatter.lm), Conversation()
    first = ask(answerer, conversation, "a first message")
    before = first.usage.prompt_tokens + len("A FIRST MESSAGE") + END
    chatter.ran()
    second = ask(answerer, conversation, "and more")
    assert second.text == "AND MORE"
    new = len("\n<|im_start|>user\nand more") + END + len("\n<|im_start|>assistant\n")
    assert second.usage.prompt_tokens == before + new
    assert second.usage.cached_tokens == before
    assert chatter.ran() == new + len("AND MORE") + END


@pytest.mark.parametrize("kind", CACHES)
def test_a_retry_runs_one_token_of_the_prompt(kind: str) -> None:
    chatter = Chatter(make_cache=CACHES[kind])
    answerer, conversation = Answerer(chatter.lm), Conversation(system="be loud")
    ask(answerer, conversation, "a message that is answered twice")
    chatter.ran()
    conversation.retry()
    again = answer(answerer, conversation)
    assert again.usage.cached_tokens == again.usage.prompt_tokens - 1
    assert chatter.ran() == 1 + len(again.text) + END


@pytest.mark.parametrize("kind", CACHES)
def test_an_undone_exchange_costs_nothing_of_what_stays(kind: str) -> None:
    chatter = Chatter(make_cache=CACHES[kind])
    answerer, conversation = Answerer(chatter.lm), Conversation()
    ask(answerer, conversation, "a message that stays")
    ask(answerer, conversation, "a message that goes")
    conversation.undo()
    chatter.ran()
    other = ask(answerer, conversation, "what came instead")
    assert other.text == "WHAT CAME INSTEAD"
    said = len("<|im_start|>user\na message that stays") + END + len("\n<|im_start|>assistant\n")
    kept = said + len("A MESSAGE THAT STAYS") + END
    kept += 0 if kind == "recurrent" else len("\n<|im_start|>user\n")
    assert other.usage.cached_tokens == kept
    new = other.usage.prompt_tokens - kept
    assert chatter.ran() == new + len("WHAT CAME INSTEAD") + END


@pytest.mark.parametrize("kind", CACHES)
def test_a_stopped_answer_is_gone_on_from_where_it_stopped(kind: str) -> None:
    chatter = Chatter(make_cache=CACHES[kind])
    answerer, conversation = Answerer(chatter.lm), Conversation()
    stopped = ask(answerer, conversation, "a message that is long", stop_after=5)
    assert (stopped.text, stopped.finish_reason) == ("A MES", None)
    after = ask(answerer, conversation, "go on")
    assert after.text == "GO ON"
    assert after.usage.cached_tokens >= stopped.usage.prompt_tokens + (5 if kind == "plain" else 0)


@pytest.mark.parametrize("kind", CACHES)
def test_where_the_template_forgets_reasoning_only_the_answer_is_run_again(kind: str) -> None:
    chatter = Chatter(
        lambda message: f"{THINK}\nhm\n{THOUGHT}\n\n{message.upper()}",
        template=FORGETFUL,
        thinks=True,
        make_cache=CACHES[kind],
    )
    answerer, conversation = Answerer(chatter.lm), Conversation()
    first = ask(answerer, conversation, "a message to think of")
    assert (first.text, first.reasoning) == ("A MESSAGE TO THINK OF", "hm")
    conversation.ask("and another one")
    common = in_common(prompt(chatter.lm, conversation), [*prompt_before(chatter, conversation)])
    second = answer(answerer, conversation)
    behind_message = len("<|im_start|>assistant\n")  # which no message's end is the end of
    assert common - behind_message <= second.usage.cached_tokens <= common
    if kind == "plain":
        assert second.usage.cached_tokens == common
    conversation.retry()
    assert (again := answer(answerer, conversation).usage).cached_tokens == again.prompt_tokens - 1


def prompt_before(chatter: Chatter, conversation: Conversation) -> list[int]:
    """The prompt of the first message of a conversation."""
    return Chat(conversation.messages[:1]).tokens(chatter.lm.vocabulary)


# ---- what an answer is made of ----


def test_reasoning_and_answer_are_told_apart_and_together_are_the_text(
    demo: mlxgen.LanguageModel,
) -> None:
    conversation = Conversation()
    conversation.ask("What is the capital of France?")
    given = Answerer(demo).begin(conversation)
    events = [event for _, events in given for event in events] + list(given.finish())
    given.close()
    assert isinstance(events.pop(), Ended)
    text = "".join(getattr(event, "text", "") for event in events)
    assert text == demo.generate(conversation.messages).text
    assert given.reasoning == "This is about France. Its capital is Paris."
    assert given.text == "The capital of France is Paris."
    assert given.finish_reason == "stop"


def test_an_answer_that_is_stopped_in_its_reasoning_has_that(demo: mlxgen.LanguageModel) -> None:
    conversation = Conversation()
    given = ask(Answerer(demo), conversation, "What is 34 + 28?", stop_after=8)
    assert given.text == ""
    assert given.reasoning.startswith("4 + 8")
    assert conversation.last.reasoning == given.reasoning


def test_a_form_holds_for_what_follows_the_reasoning(demo: mlxgen.LanguageModel) -> None:
    conversation = Conversation()
    schema = {"type": "object", "properties": {"a": {"const": 7}}, "required": ["a"]}
    conversation.require("json", {**schema, "additionalProperties": False})
    given = ask(Answerer(demo), conversation, "What is 34 + 28?")
    assert given.reasoning
    assert json.loads(given.text) == {"a": 7}
    conversation.require("json", None)
    conversation.require("regex", "ab{3}")
    assert ask(Answerer(demo), conversation, "What is 34 + 28?").text == "abbb"


def test_settings_and_forms_that_the_model_cannot_follow_are_found_early(
    demo: mlxgen.LanguageModel,
) -> None:
    answerer, conversation = Answerer(demo), Conversation()
    answerer.check(conversation)
    conversation.set("logit_bias", {"5000": 1})
    with pytest.raises(
        OptionError, match="logit_bias: expected token ids from 0 to 1023, got 5000"
    ):
        answerer.check(conversation)
    conversation.set("logit_bias", None)
    conversation.require("regex", "(")
    with pytest.raises(GrammarError):
        answerer.check(conversation)


# ---- the context ----


def test_a_full_context_says_what_to_do_before_anything_runs() -> None:
    chatter = Chatter(max_context=120)
    answerer, conversation = Answerer(chatter.lm), Conversation()
    ask(answerer, conversation, "short")
    chatter.ran()
    conversation.ask("long " * 20)
    with pytest.raises(PromptError, match=r"context of chatter holds 120.*/drop.*/undo.*/clear"):
        answerer.begin(conversation)
    assert chatter.ran() == 0


def test_an_answer_ends_where_the_context_does() -> None:
    chatter = Chatter(lambda message: "x" * 500, max_context=120)
    given = ask(Answerer(chatter.lm), Conversation(), "go on and on")
    assert given.finish_reason == "length"
    assert given.fills_context
    assert given.usage.prompt_tokens + given.usage.completion_tokens == 120
    short = Conversation()
    short.set("max_tokens", 5)
    assert not ask(Answerer(chatter.lm), short, "go on and on").fills_context
