"""Numbers between bounds: what their expressions match is what plain Python says, each way."""

from __future__ import annotations

import random
import re
from decimal import Decimal
from fractions import Fraction

from mlxgen.filters import JsonSchema
from mlxgen.filters.schema.numbers import Span, Texts, numbers
from tests.effort import tries

from .helpers import constrained, feed, takes

PAIRS = tries(20_000)
NAMED = (
    "0",
    "0",
    "1",
    "1e-5",
    "1e5",
    "0.05",
    "0.95",
    "0.5",
    "3.4028235e38",
    "-3.4028235e38",
    "1e-300",
    "1e300",
)


def number(draw: random.Random) -> Decimal:
    if draw.random() < 0.2:
        return Decimal(draw.choice(NAMED))
    most = 10 ** draw.randint(1, 20)
    return Decimal(draw.randint(-most, most)).scaleb(draw.randint(-7, 3))


def near(draw: random.Random, value: Decimal) -> Decimal:
    kind = draw.randrange(3)
    if kind == 0:
        return value
    if kind == 1:
        return value + Decimal(draw.choice([-1, 1])).scaleb(-draw.randint(0, 6))
    return Decimal(str(round(float(value), draw.randint(0, 3))))


def spelled(draw: random.Random, value: Decimal) -> str:
    """One of the spellings of a number."""
    plain = format(value, "f")
    kind = draw.randrange(4)
    if kind == 0:
        return plain
    if kind == 1:
        return (plain if "." in plain else f"{plain}.") + "0" * draw.randint(1, 3)
    if kind == 2:
        return str(float(value)) if abs(value) < Decimal("1e300") else plain
    exponent = value.adjusted() if value else draw.randint(-4, 4)
    digits = format(value.scaleb(-exponent).normalize(), "f")
    if len(digits.strip("-")) > 19:
        return plain  # more digits before an exponent than are written
    sign = draw.choice(["", "+"]) if exponent >= 0 else ""
    return f"{digits}{draw.choice('eE')}{sign}{exponent}"


def span(draw: random.Random) -> Span:
    low = number(draw)
    high = near(draw, low) if draw.random() < 0.4 else number(draw)
    low, high = sorted((low, high))
    found = Span()
    if draw.random() < 0.8:
        found = found.both(Span(low=Fraction(low), above=draw.random() < 0.5))
    if draw.random() < 0.8:
        found = found.both(Span(high=Fraction(high), below=draw.random() < 0.5))
    return found


def matches(texts: Texts | None, text: str) -> bool:
    return (
        texts is not None
        and bool(texts.every)
        and all(re.fullmatch(each, text) for each in texts.every)
        and not any(re.fullmatch(each, text) for each in texts.no)
    )


def holds(span: Span, value: Fraction) -> bool:
    return (
        (span.low is None or (value > span.low if span.above else value >= span.low))
        and (span.high is None or (value < span.high if span.below else value <= span.high))
    )  # fmt: skip


def test_a_number_matches_if_and_only_if_it_is_between_the_bounds() -> None:
    draw = random.Random(1)
    inside = outside = 0
    while min(inside, outside) < PAIRS:
        bounds = span(draw)
        of_numbers, of_integers = numbers(bounds), numbers(bounds, whole=True)
        for _ in range(8):
            base = draw.choice([bounds.low, bounds.high, None])
            known = None if base is None else Decimal(base.numerator) / Decimal(base.denominator)
            text = spelled(draw, near(draw, number(draw) if known is None else known))
            value = Fraction(Decimal(text))
            if len(text) > 100:
                continue  # bounds of more digits are drawn a little closer
            found = matches(of_numbers, text)
            assert found == holds(bounds, value), (bounds, text)
            inside, outside = inside + found, outside + (not found)
            whole = Fraction(int(value))
            assert matches(of_integers, str(whole)) == holds(bounds, whole), (bounds, whole)


def test_no_number_gets_beyond_its_bounds_only_because_of_an_exponent_to_come() -> None:
    constraint = feed(constrained(JsonSchema({"type": "number", "minimum": 0, "maximum": 9})), "9")
    assert takes(constraint, ".0") and takes(constraint, "e-1")
    assert not takes(constraint, "5") and not takes(constraint, "e1")
    assert not takes(constraint, "." + "0" * 18 + "1")
