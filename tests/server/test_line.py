"""Who is next at the compilers."""

from __future__ import annotations

import asyncio

import pytest

from mlxgen.server.line import WAITING, CrowdedError, Line, Turn


class Queue:
    """A line of which the test sees who was called, in order."""

    def __init__(self, places: int) -> None:
        self.line = Line(places)
        self.called: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.turns: dict[str, list[Turn]] = {}

    async def come(self, client: str, *, heavy: bool = False) -> None:
        async def enter() -> None:
            turn = await self.line.enter(client, heavy=heavy)
            self.called.append(client)
            self.turns.setdefault(client, []).append(turn)

        self.tasks.append(asyncio.create_task(enter()))
        await asyncio.sleep(0)

    async def go(self, client: str, cost: float) -> None:
        self.line.leave(self.turns[client].pop(0), cost)
        for _ in range(3):
            await asyncio.sleep(0)


def test_one_who_asks_for_little_comes_before_many_who_ask_for_much() -> None:
    async def run() -> None:
        queue = Queue(2)
        for client in "abcdef":
            for _ in range(3):
                await queue.come(client, heavy=True)
        assert queue.called == ["a"]
        await queue.come("small")
        assert queue.called == ["a", "small"]
        await queue.go("a", 0.8)
        await queue.go("small", 0.01)
        await queue.come("small")
        assert queue.called == ["a", "small", "b", "small"]

    asyncio.run(run())


def test_turns_go_round_between_clients_whoever_came_first() -> None:
    async def run() -> None:
        queue = Queue(1)
        for client in "aaaabbcc":
            await queue.come(client)
        for _ in range(8):
            await queue.go(queue.called[-1], 0.5)
        assert "".join(queue.called) == "abcabcaa"

    asyncio.run(run())


def test_a_client_whose_light_turns_were_not_leaves_a_place_to_others() -> None:
    async def run() -> None:
        queue = Queue(2)
        for _ in range(4):
            await queue.come("bomb")
        assert queue.called == ["bomb", "bomb"]
        await queue.go("bomb", 0.8)
        await queue.come("other")
        await queue.go("bomb", 0.8)
        assert sorted(queue.called) == ["bomb", "bomb", "bomb", "other"]

    asyncio.run(run())


def test_one_who_leaves_the_line_takes_no_place() -> None:
    async def run() -> None:
        queue = Queue(1)
        for client in "abc":
            await queue.come(client)
        queue.tasks[1].cancel()
        await queue.go("a", 0.1)
        assert queue.called == ["a", "c"]
        queue.tasks.append(asyncio.create_task(asyncio.sleep(0)))
        await queue.come("d")
        queue.line.leave(queue.turns["c"].pop(), 0.1)
        queue.tasks[-1].cancel()  # it has been called, and does not know yet
        await asyncio.sleep(0.01)
        await queue.come("e")
        assert queue.called == ["a", "c", "e"]

    asyncio.run(run())


def test_a_client_may_wait_for_so_many_turns_and_others_still_come() -> None:
    async def run() -> None:
        queue = Queue(1)
        for _ in range(WAITING + 1):
            await queue.come("a")
        with pytest.raises(CrowdedError):
            await queue.line.enter("a")
        await queue.come("b")
        await queue.go("a", 0.1)
        assert queue.called == ["a", "b"]
        for task in queue.tasks:
            task.cancel()
        await asyncio.sleep(0)

    asyncio.run(run())
