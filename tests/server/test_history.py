"""A conversation that another server accepted once is never a reason to refuse a request."""

from __future__ import annotations

from typing import Any

import pytest

from mlxgen.server.chat import parse_chat
from mlxgen.server.errors import RequestError
from mlxgen.server.messages import parse_messages
from mlxgen.server.responses import parse_responses

from .kit import demo

USER = {"role": "user", "content": "Hello"}
CALL = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
ASKED = {"role": "assistant", "content": None, "tool_calls": [CALL]}


def chat(*before: Any) -> tuple[str, list[str]]:
    return _told(parse_chat({"messages": [USER, *before, USER]}, demo()))


def messages(*before: Any, **more: Any) -> tuple[str, list[str]]:
    body = {"messages": [USER, *before, USER], "max_tokens": 9, **more}
    return _told(parse_messages(body, demo()))


def responses(*before: Any) -> tuple[str, list[str]]:
    return _told(parse_responses({"input": [USER, *before, USER]}, demo()))


def _told(call: Any) -> tuple[str, list[str]]:
    return demo().vocabulary.decode(call.jobs[0].prompt.tokens), list(call.ignored)


def answer(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def result(*blocks: Any) -> tuple[Any, Any]:
    use = {"type": "tool_use", "id": "a", "name": "look", "input": {}}
    given = {"type": "tool_result", "tool_use_id": "a", "content": list(blocks)}
    return answer(use), {"role": "user", "content": [given]}


TEXT_SOURCE = {"type": "text", "media_type": "text/plain", "data": "the text"}
PDF_SOURCE = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}
CHAT: list[tuple[list[Any], str, list[str]]] = [
    ([ASKED, {"role": "tool", "tool_call_id": "a", "content": "a\0b"}], "a\ufffdb", []),
    ([ASKED, {"role": "tool", "tool_call_id": "a", "content": "a\ud83d"}], "a\ufffd", []),
    ([ASKED, {"role": "tool", "tool_call_id": "a", "content": None}], "look", []),
    ([ASKED, {"role": "tool", "tool_call_id": "a"}], "look", []),
    ([ASKED, {"role": "tool", "content": "cold"}], "cold", []),
    ([{"role": "assistant", "content": None}], "Hello", []),
    ([{"role": "assistant"}], "Hello", []),
    ([{"role": "assistant", "content": "x", "audio": {"id": "1"}}], "x", []),
    ([{"role": "system", "content": None}], "Hello", []),
    (
        [
            {"role": "assistant", "function_call": {"name": "look", "arguments": None}},
            {"role": "function", "name": "look", "content": "cold"},
        ],
        "cold",
        [],
    ),
    (
        [{**ASKED, "tool_calls": [{"type": "custom", "custom": {"name": "sh", "input": "ls"}}]}],
        '{"input": "ls"}',
        [],
    ),
    (
        [{"role": "user", "content": [{"type": "file", "file": {"file_id": "1"}}]}],
        "[file]",
        ["messages[1].content[0]"],
    ),
    ([{"role": "user", "content": [{"type": "strange", "text": "words"}]}], "words", []),
    (
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}],
        "[image]",
        ["messages[1].content[0]"],
    ),
]


@pytest.mark.parametrize(("before", "text", "named"), CHAT)
def test_a_history_of_chat_completions_is_taken(
    before: list[Any], text: str, named: list[str]
) -> None:
    prompt, ignored = chat(*before)
    assert text in prompt and ignored == named


MESSAGES: list[tuple[tuple[Any, ...], str, list[str]]] = [
    (result({"type": "text", "text": "a\0b"}), "a\ufffdb", []),
    (result({"type": "document", "source": TEXT_SOURCE}), "the text", []),
    (
        result({"type": "document", "title": "T", "source": PDF_SOURCE}),
        "[document: T]",
        ["messages[2].content[0].content[0]"],
    ),
    (
        result(
            {
                "type": "search_result",
                "source": "where",
                "title": "what",
                "content": [{"type": "text", "text": "found"}],
            }
        ),
        "what\nwhere\nfound",
        [],
    ),
    (
        result({"type": "tool_reference", "tool_name": "Read"}),
        "[tool_reference: Read]",
        ["messages[2].content[0].content[0]"],
    ),
    (result({"type": "image", "source": PDF_SOURCE}), "[image]", ["messages"]),
    ((answer({"type": "tool_use", "id": "a", "name": "look", "input": None}),), "look", []),
    (
        (
            answer(
                {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
                {"type": "text", "text": "Paris"},
            ),
        ),
        "Paris",
        ["messages[1].content[0]"],
    ),
    (
        (
            answer(
                {
                    "type": "web_search_tool_result",
                    "tool_use_id": "s",
                    "content": [{"type": "web_search_result", "title": "T", "url": "http://u"}],
                }
            ),
        ),
        "T http://u",
        [],
    ),
    ((answer({"type": "image", "source": PDF_SOURCE}),), "[image]", ["messages[1].content[0][0]"]),
    ((answer({"type": "compaction", "content": "summed up"}),), "summed up", []),
    (({"role": "assistant", "content": None},), "Hello", []),
]


@pytest.mark.parametrize(("before", "text", "named"), MESSAGES)
def test_a_history_of_messages_is_taken(
    before: tuple[Any, ...], text: str, named: list[str]
) -> None:
    prompt, ignored = messages(*before)
    assert text in prompt and ignored == named


RESPONSES: list[tuple[list[Any], str, list[str]]] = [
    ([{"type": "additional_tools", "tools": []}], "Hello", ["input[1]"]),
    ([{"type": "web_search_call", "id": "w", "status": "completed"}], "Hello", ["input[1]"]),
    (
        [
            {"type": "custom_tool_call", "call_id": "c", "name": "apply", "input": "diff"},
            {"type": "custom_tool_call_output", "call_id": "c", "output": "done"},
        ],
        "done",
        [],
    ),
    (
        [
            {"type": "function_call", "call_id": "c", "name": "look", "arguments": None},
            {"type": "function_call_output", "call_id": "c", "output": None},
        ],
        "look",
        [],
    ),
    ([{"type": "message", "role": "assistant", "content": None}], "Hello", []),
    (
        [{"role": "user", "content": [{"type": "input_file", "filename": "f.pdf"}]}],
        "[input_file: f.pdf]",
        ["input[1].content[0]"],
    ),
]


@pytest.mark.parametrize(("before", "text", "named"), RESPONSES)
def test_a_history_of_responses_is_taken(before: list[Any], text: str, named: list[str]) -> None:
    prompt, ignored = responses(*before)
    assert text in prompt and ignored == named


@pytest.mark.parametrize("given", ["", []])
def test_a_probe_without_input_is_answered(given: Any) -> None:
    assert parse_responses({"input": given}, demo()).jobs


def test_the_line_of_a_bill_is_dropped_wherever_it_stands() -> None:
    bill = "x-anthropic-billing-header: cc_version=1.2.3; cch=abc;"
    for system in (
        f"{bill}\nBe kind.",
        [{"type": "text", "text": bill}, {"type": "text", "text": "Be kind."}],
    ):
        prompt, _ = messages(system=system)
        assert "billing" not in prompt and "Be kind." in prompt
    said: dict[str, Any] = {
        "role": "user",
        "content": [{"type": "text", "text": bill}, {"type": "text", "text": "Hi"}],
    }
    assert "billing" not in messages(said)[0] and "billing" not in chat(said)[0]
    item = {**said, "content": [{**part, "type": "input_text"} for part in said["content"]]}
    jobs = parse_responses({"input": [item]}, demo()).jobs
    assert demo().vocabulary.decode(jobs[0].prompt.tokens).count("billing") == 0
    assert "billing" not in chat({"role": "system", "content": f"{bill}\nBe kind."})[0]


@pytest.mark.parametrize(
    ("parse", "body"),
    [
        (parse_chat, {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}),
        (
            parse_chat,
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": "data:,"}}],
                    }
                ]
            },
        ),
        (
            parse_messages,
            {
                "messages": [
                    {"role": "user", "content": [{"type": "document", "source": PDF_SOURCE}]}
                ],
                "max_tokens": 9,
            },
        ),
        (parse_responses, {"input": [{"role": "user", "content": [{"type": "input_file"}]}]}),
    ],
)
def test_what_the_newest_message_asks_for_and_cannot_be_shown_is_an_error(
    parse: Any, body: Any
) -> None:
    with pytest.raises(RequestError):
        parse(body, demo())


def test_an_image_in_an_earlier_answer_is_a_note() -> None:
    data, said = "data:image/png;base64,AA==", {"type": "text", "text": "See:"}
    image = {"type": "image_url", "image_url": {"url": data}}
    text, ignored = chat({**answer(said, image), "annotations": "none"})
    assert "See:" in text and ignored == ["messages[1].content[1]"]
    text, ignored = responses(answer(said, {"type": "input_image", "image_url": data}))
    assert "See:" in text and ignored == ["input[1].content[1]"]
