"""Events as they go over the line."""

from __future__ import annotations

from mlxgen.server.reply import Aside, Sent
from mlxgen.server.wire import encode_events


def test_an_event_that_says_its_type_is_named_and_others_are_not() -> None:
    events = encode_events([{"type": "ping", "text": "a\nb"}, {"choices": []}, '{"choices":[]}'])
    assert events == (
        b'event: ping\ndata: {"type":"ping","text":"a\\nb"}\n\n'
        b'data: {"choices":[]}\n\ndata: {"choices":[]}\n\n'
    )


def test_readers_that_keep_the_last_id_do_not_take_a_comment_for_an_event() -> None:
    sent: list[Sent] = [Aside(": wait"), {"n": 1}, Aside("event: ping\ndata: {}")]
    assert encode_events(sent) == b': wait\ndata: {"n":1}\n\nevent: ping\ndata: {}\n\n'
