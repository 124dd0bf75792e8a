"""What other threads get to know of a loaded model, and what the log says of it."""

from __future__ import annotations

import logging

import pytest

from mlxgen.server.engine.boot import engine_of
from mlxgen.server.settings import Settings
from tests.fakes.chatting import Chatter


def test_a_model_whose_calls_cannot_be_read_is_noted_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "mlxgen.server"):
        model = engine_of(Chatter().lm, Settings()).model
    assert model.dialect.tools is None
    assert [record.levelname for record in caplog.records if "tools" in record.message] == ["INFO"]
