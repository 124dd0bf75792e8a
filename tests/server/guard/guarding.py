"""A guard for the length of a test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from mlxgen.server.guard.child import Facts
from mlxgen.server.guard.guard import Guard


def with_guard(
    known: Facts, test: Callable[[Guard], Coroutine[Any, Any, None]], **options: Any
) -> None:
    async def run() -> None:
        guard = Guard(known, **options)
        guard.start()
        try:
            async with asyncio.timeout(60):
                await test(guard)
        finally:
            await guard.close()

    asyncio.run(run())
