"""Bodies and events: what is read, what is refused and where, and what goes over the line."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest

from mlxgen.server.errors import RequestError
from mlxgen.server.reply import Aside, Sent
from mlxgen.server.validation import parse_body
from mlxgen.server.wire import ClientGone, check_headers, encode_events, read_body

REFUSED = {
    b"": "Expecting value",
    b"   ": "Expecting value",
    b"{": "Expecting property name",
    b"[1, 2]": "expected an object",
    b'"text"': "expected an object",
    b"null": "expected an object",
    b'{"a": 1,}': "property name",
    b"{'a': 1}": "property name",
    b'{"a": 1} {"b": 2}': "Extra data",
    b'{"a": NaN}': "NaN is not JSON",
    b'{"a": [-Infinity]}': "-Infinity is not JSON",
    b'{"a": 1e999}': "too large",
    b'{"a": ' + b"9" * 5000 + b"}": "too large",
    b'{"a": 1, "b": 2, "a": 3}': "'a' appears twice",
    b'{"a": {"' + b"x" * 99 + b'": 1, "' + b"x" * 99 + b'": 1}}': r"\.\.\.' appears twice",
    b'{"a": "\x00"}': "control character",
    b'{"a": "\xff"}': "not UTF-8 at byte 7",
    b'\xff\xfe{\x00"\x00': "not UTF-8",
    b"\xef\xbb\xbf{}": "BOM",
    b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}": "nested too deep",
    b'{"a":' * 100_000 + b"1" + b"}" * 100_000: "nested too deep",
}


@pytest.mark.parametrize("data", REFUSED, ids=[str(data[:20]) for data in REFUSED])
def test_what_is_no_strict_json_is_refused_with_the_reason(data: bytes) -> None:
    with pytest.raises(RequestError, match=REFUSED[data]) as caught:
        parse_body(data)
    assert caught.value.status == 400
    assert len(caught.value.message) < 400


def test_strict_json_is_read() -> None:
    text = '{"a": [1, 2.5, true, null], "b": {"c": "\\u00e9\\ud83d\\ude0a", "d": "\\\\u0000"}}'
    assert parse_body(text.encode()) == {
        "a": [1, 2.5, True, None],
        "b": {"c": "é😊", "d": "\\u0000"},
    }


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({b"content-type": b"text/plain"}, 415),
        ({b"content-type": b"application/x-www-form-urlencoded"}, 415),
        ({b"content-encoding": b"gzip"}, 415),
        ({b"content-length": b"1001"}, 413),
        ({b"content-length": b"9" * 5000}, 413),
    ],
)
def test_headers_can_be_reason_enough(headers: dict[bytes, bytes], status: int) -> None:
    with pytest.raises(RequestError) as caught:
        check_headers(headers.items(), 1000)
    assert caught.value.status == status


def test_json_of_any_name_and_no_name_are_let_through() -> None:
    for kind in (b"application/json", b"Application/JSON; charset=utf-8", b"application/x+json"):
        check_headers([(b"content-type", kind)], 10)
    check_headers([(b"content-length", b"10"), (b"content-encoding", b"identity")], 10)


def reading(parts: list[bytes], limit: int, *, gone: bool = False) -> bytes:
    messages: list[MutableMapping[str, Any]] = [
        {"type": "http.request", "body": part, "more_body": gone or part is not parts[-1]}
        for part in parts
    ]
    if gone:
        messages.append({"type": "http.disconnect"})

    async def receive() -> MutableMapping[str, Any]:
        return messages.pop(0)

    return asyncio.run(read_body(receive, limit))


def test_parts_are_joined() -> None:
    assert reading([b"ab", b"", b"c"], 3) == b"abc"


def test_a_body_over_the_limit_is_not_read_to_its_end() -> None:
    with pytest.raises(RequestError) as caught:
        reading([b"ab", b"cd", b"never"], 3)
    assert caught.value.status == 413


def test_a_client_that_hangs_up_is_no_error_of_the_request() -> None:
    with pytest.raises(ClientGone):
        reading([b"ab"], 100, gone=True)


def test_an_event_that_says_its_type_is_named_and_others_are_not() -> None:
    events = encode_events([{"type": "ping", "text": "a\nb"}, {"choices": []}, '{"choices":[]}'])
    assert events == (
        b'event: ping\ndata: {"type":"ping","text":"a\\nb"}\n\n'
        b'data: {"choices":[]}\n\ndata: {"choices":[]}\n\n'
    )


def test_readers_that_keep_the_last_id_do_not_take_a_comment_for_an_event() -> None:
    sent: list[Sent] = [Aside(": wait"), {"n": 1}, Aside("event: ping\ndata: {}")]
    assert encode_events(sent) == b': wait\ndata: {"n":1}\n\nevent: ping\ndata: {}\n\n'
