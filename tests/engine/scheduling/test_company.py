"""Whatever happens to the others, a row says in any company what it says alone."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlxgen import LanguageModel, Limits
from mlxgen.engine.prefix.block import Block
from mlxgen.engine.prefix.block_file import Layout
from mlxgen.engine.prefix.disk import Disk
from mlxgen.engine.prefix.store import BlockStore
from mlxgen.engine.request.accept import end
from tests.fakes.prefix_integrity import check_integrity

from ...effort import tries
from .company import ORDERS, PROMPTS, REAL, SCRIPTED, Company, alone, model_with, options

DEEDS = ["step", "submit", "step", "rewind", "fork", "cancel", "order", "submit"]


class Flaky(Disk):
    """A disk that fails now and then."""

    reads = 0

    def read(self, block: Block) -> Block:
        self.reads += 1
        if self.reads % 7 == 0:
            raise OSError("the disk is gone")
        return super().read(block)


def happen(company: Company, kind: str, data: st.DataObject, most: int) -> None:
    """One of all that callers do. What is drawn does not depend on how far anybody has come, which
    the time of a pass decides as well."""
    deed = data.draw(st.sampled_from(DEEDS))
    has_room, live = len(company.requests) < most, company.live
    if deed == "submit":
        prompt, given = data.draw(PROMPTS), data.draw(options(kind))
        if has_room:
            company.submit(prompt, **given)
        return
    if deed == "step":
        for _ in range(data.draw(st.sampled_from([1, 3, 9]))):
            company.step()
        return
    which, share, order = (
        data.draw(st.integers(0, 59)),
        data.draw(st.floats(0, 1)),
        data.draw(ORDERS),
    )
    if not live:
        company.step()
        return
    request = live[which % len(live)]
    if deed == "rewind":
        company.rewind(request, share)
    elif deed == "cancel":
        company.cancel(request)
    elif deed == "order" and not request.handle.has_ended:
        company.order(request, order)
    elif deed == "fork" and has_room:
        company.fork(request)


def limits_of(lm: LanguageModel, data: st.DataObject) -> Limits:
    room = data.draw(st.sampled_from([None, 5.01, 6.5, 9, 14]), "short sequences that have room")
    return Limits(
        max_batch=data.draw(st.sampled_from([1, 2, 5]), "max_batch"),
        max_bytes=None if room is None else int(lm.runtime.footprint.alone(0) * room),
        keep_prefixes=data.draw(st.booleans(), "keep_prefixes"),
        prefill_chunk=data.draw(st.sampled_from([None, 4, 16, 64]), "prefill_chunk"),
    )


@pytest.mark.parametrize("kind", REAL)
@settings(max_examples=tries(16), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_row_says_in_any_company_what_it_says_alone(kind: str, data: st.DataObject) -> None:
    lm = model_with(kind)
    company = Company(lm, limits_of(lm, data))
    for _ in range(data.draw(st.integers(5, 25), "moments")):
        happen(company, kind, data, 6)
    company.finish()
    company.compare()


@pytest.mark.parametrize("kind", SCRIPTED)
@settings(max_examples=tries(100), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_so_it_does_in_a_crowd_with_a_disk_that_fails_now_and_then(
    kind: str, data: st.DataObject
) -> None:
    lm = model_with(kind)
    make = lm.runtime.make_cache
    with TemporaryDirectory() as folder:
        disk = Flaky(Path(folder), 300_000, Layout(make)) if data.draw(st.booleans()) else None
        cache = BlockStore(make, 1 << 20, folder=disk)
        lm.runtime.prefix_cache = cache
        company = Company(lm, limits_of(lm, data))
        for moment in range(data.draw(st.integers(10, 60), "moments")):
            if disk is not None and moment % 12 == 0:  # what goes to the disk comes back from there
                cache.shrink(0)
            happen(company, kind, data, 16)
        company.finish()
        company.compare()
        check_integrity(cache)
        assert cache.close(20)


# ---- what such runs found, by name


@pytest.mark.parametrize("kind", ["demo", "hybrid"])
def test_a_fork_draws_with_its_own_seed_even_if_its_parent_leaves_at_once(kind: str) -> None:
    company = Company(model_with(kind))
    given: dict[str, Any] = {"temperature": 1.5, "max_tokens": 12, "ignore_eos": True, "seed": 1}
    first = company.submit([5, 6, 7], **given)
    assert first is not None
    while first.handle.request.position < 4:
        company.step()
    company.fork(first)
    company.cancel(first)  # its next draw has been submitted already
    company.finish()
    company.compare()


def test_what_has_ended_takes_no_orders() -> None:
    company = Company(model_with("plain"))
    request = company.submit([1, 2, 3], max_tokens=4)
    assert request is not None
    company.finish()
    company.order(request, lambda row: end(row, "cancelled"))
    assert not request.deeds and request.seen == alone(company.lm, request)
