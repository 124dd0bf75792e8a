"""What the demo model answers, and what a server refuses, by any of the APIs."""

from __future__ import annotations

from .exchanges import carry_out
from .running import Running


def test_a_server_answers_as_the_lines_say(server: Running) -> None:
    carry_out(server, "demo")
