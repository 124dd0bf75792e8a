"""The JSON spellings of the numbers between two bounds, as regular expressions.

Bounds are exact fractions, of any size. A number is spelled in digits with or without a fraction,
or with an exponent; if there are bounds, up to three digits, or ``0.``, stand before the exponent,
and the number is one that a float can hold.

Invariant: a spelling that matches is that of a number between the bounds, and so is every spelling
without an exponent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from math import ceil, floor, gcd

ANY_NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
ANY_INTEGER = r"-?(?:0|[1-9][0-9]*)"
_SMALLEST, _LARGEST = -300, 307  # exponents of floats
_LONGEST = 400  # digits of a bound
_DEEPEST = 100  # digits that are compared one by one, in brackets within brackets
_MOST = 500  # multiples that are listed
_TAILS = 1000  # ends of multiples that are listed
_ANY_DIGITS = "[0-9]*"


@dataclass(frozen=True, slots=True)
class Span:
    """The numbers from ``low`` to ``high`` (None: without a bound), or between them."""

    low: Fraction | None = None
    high: Fraction | None = None
    above: bool = False  # whether ``low`` itself is out
    below: bool = False  # whether ``high`` itself is out

    @property
    def is_empty(self) -> bool:
        if self.low is None or self.high is None:
            return False
        return self.low > self.high or (self.low == self.high and (self.above or self.below))

    def both(self, other: Span) -> Span:
        """The numbers that are in both."""
        low, above = self.low, self.above
        if other.low is not None and (low is None or (other.low, other.above) > (low, above)):
            low, above = other.low, other.above
        high, below = self.high, self.below
        if other.high is not None and (high is None or (-other.high, other.below) > (-high, below)):
            high, below = other.high, other.below
        return Span(low, high, above, below)

    def whole(self) -> Span:
        """The same for integers, with both bounds in."""
        low, high = self.low, self.high
        if low is not None:
            low = Fraction(floor(low) + 1 if self.above else ceil(low))
        if high is not None:
            high = Fraction(ceil(high) - 1 if self.below else floor(high))
        return Span(low, high)

    @property
    def mirrored(self) -> Span:
        """The numbers with the other sign."""
        low = None if self.high is None else -self.high
        high = None if self.low is None else -self.low
        return Span(low, high, self.below, self.above)


def integers(span: Span) -> str | None:
    """The integers of a span; None if there are none."""
    span = span.whole()
    if span.is_empty:
        return None
    if span == Span():
        return ANY_INTEGER
    return _both_signs(span, _digits)


def numbers(span: Span) -> str | None:
    """The numbers of a span; None if there are none."""
    if span.is_empty:
        return None
    if span == Span():
        return ANY_NUMBER
    return _both_signs(span, lambda part: _any_of([_decimal(part), _scientific(part)]))


def multiples(step: Fraction, span: Span, *, whole: bool) -> list[str] | None:
    """The multiples of a step in a span, as expressions that all have to match; none, if there are
    none; None if no short expression is known."""
    if whole:
        step, span = Fraction(step.numerator), span.whole()
    if span.low is not None and span.high is not None and (span.high - span.low) / step <= _MOST:
        first = ceil(span.low / step)
        found = [step * n for n in range(first, floor(span.high / step) + 1)]
        kept = [v for v in found if not span.both(Span(v, v)).is_empty]
        return ["|".join(_literal(value, whole=whole) for value in kept)] if kept else []
    plain = integers(span) if whole else _both_signs(span, _decimal)
    tails = _multiple_of(step)
    return None if tails is None else [] if plain is None else [plain, tails]


# ---- the two signs -----------------------------------------------------------------------------


def _both_signs(span: Span, of: Callable[[Span], str | None]) -> str | None:
    positive = span.both(Span(low=Fraction(0)))
    negative = span.mirrored.both(Span(low=Fraction(0)))
    parts = [None if positive.is_empty else of(positive)]
    minus = None if negative.is_empty else of(negative)
    parts.append(None if minus is None else f"-{_group(minus)}")
    return _any_of(parts)


def _any_of(texts: Iterable[str | None]) -> str | None:
    some = [text for text in dict.fromkeys(texts) if text is not None]
    return "|".join(some) if some else None


def _group(text: str) -> str:
    return f"(?:{text})"


# ---- integers from 0 on ------------------------------------------------------------------------


def _digits(span: Span) -> str | None:
    """The integers of a span from 0 on whose bounds are in."""
    assert span.low is not None
    return _between(int(span.low), None if span.high is None else int(span.high))


def _between(low: int, high: int | None) -> str | None:
    """The integers from ``low``, which is 0 or more, to ``high``, without leading zeros."""
    low, high = _short(low, up=True), None if high is None else _short(high, up=False)
    if high is not None and high < low:
        return None
    first, last = len(str(low)), len(str(high)) if high is not None else len(str(low))
    parts = []
    for length in sorted({first, last}):
        least = max(low, 10 ** (length - 1) if length > 1 else 0)
        most = 10**length - 1 if high is None else min(high, 10**length - 1)
        parts.append(_alike(str(least), str(most)))
    if last - first > 1:
        parts.append(f"[1-9][0-9]{{{first},{last - 2}}}")
    if high is None:
        parts.append(f"[1-9][0-9]{{{first},}}")
    return "|".join(parts)


def _short(value: int, *, up: bool) -> int:
    """A bound of few digits and then zeros, or nines, inside of the one given."""
    unit: int = 10 ** max(0, len(str(value)) - _DEEPEST)
    return -(-value // unit) * unit if up else (value + 1) // unit * unit - 1


def _alike(low: str, high: str) -> str:
    """The numbers between two of the same length."""
    if low == high:
        return low
    if set(low) == {"0"} and set(high) == {"9"}:
        return _count(len(low))
    if low[0] == high[0]:
        return low[0] + _group(_alike(low[1:], high[1:]))
    rest = len(low) - 1
    parts = []
    first, last = int(low[0]), int(high[0])
    if set(low[1:]) - {"0"}:
        parts.append(low[0] + _group(_alike(low[1:], "9" * rest)))
        first += 1
    if set(high[1:]) - {"9"}:
        parts.append(high[0] + _group(_alike("0" * rest, high[1:])))
        last -= 1
    if first <= last:
        parts.append(_range(first, last) + _count(rest))
    return "|".join(parts)


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"[{first}-{last}]"


def _count(digits: int) -> str:
    return "" if not digits else "[0-9]" if digits == 1 else f"[0-9]{{{digits}}}"


# ---- fractions ---------------------------------------------------------------------------------


def _decimal(span: Span) -> str | None:
    """The numbers of a span from 0 on, in digits."""
    assert span.low is not None
    if span.is_empty:
        return None
    low, low_rest = _cut(span.low)
    if len(low_rest) > _DEEPEST:  # a bound of fewer digits, inside of it
        unit = Fraction(10) ** _DEEPEST
        return _decimal(replace(span, low=ceil(span.low * unit) / unit, above=False))
    if not low_rest and not span.above and span.high is None:
        return _with_fraction(_between(low, None), None)
    if span.high is None:
        free = _with_fraction(_between(low + 1, None), None)
        return _any_of([_with_fraction(str(low), (low_rest, span.above, None, False)), free])
    high, high_rest = _cut(span.high)
    if len(high_rest) > _DEEPEST:
        unit = Fraction(10) ** _DEEPEST
        return _decimal(replace(span, high=floor(span.high * unit) / unit, below=False))
    if low == high:
        return _with_fraction(str(low), (low_rest, span.above, high_rest, span.below))
    return _any_of(
        [
            _with_fraction(str(low), (low_rest, span.above, None, False)),
            _with_fraction(_between(low + 1, high - 1), None),
            _with_fraction(str(high), (None, False, high_rest, span.below)),
        ]
    )


def _cut(value: Fraction) -> tuple[int, str]:
    """The integer below a decimal fraction, and its digits after the point."""
    whole = floor(value)
    rest, digits = value - whole, list[str]()
    while rest and len(digits) < _LONGEST:
        rest *= 10
        digits.append(str(floor(rest)))
        rest -= floor(rest)
    return whole, "".join(digits)


def _with_fraction(
    whole: str | None, bounds: tuple[str | None, bool, str | None, bool] | None
) -> str | None:
    if whole is None:
        return None
    if bounds is None:
        return rf"{_group(whole)}(?:\.[0-9]+)?"
    may_stop, digits = _fraction(*bounds)
    if digits is None:
        return whole if may_stop else None
    point = rf"(?:\.{_group(digits)})"
    return f"{whole}{point}{'?' if may_stop else ''}"


@lru_cache(4096)
def _fraction(
    low: str | None, above: bool, high: str | None, below: bool
) -> tuple[bool, str | None]:
    """The digits after a point between those of two bounds: whether none will do, and those that
    will. None is no bound; what is missing of a bound's digits is 0."""
    if low is not None and not low.strip("0") and not above:
        low = None
    if high is not None:
        high = high.rstrip("0")
        if not high and below:
            return False, None
    may_stop = low is None
    if low is None and high is None:
        return True, "[0-9]+"
    if low is None and high == "":
        return True, "0+"
    if low == "" and high is None:
        return False, "0*[1-9][0-9]*"
    first, last = int(low[0]) if low else 0, int(high[0]) if high else (9 if high is None else 0)
    parts: list[tuple[str, str]] = []
    for digit in range(first, last + 1):
        after = _fraction(
            low[1:] if low is not None and digit == first else None,
            above,
            high[1:] if high is not None and digit == last else None,
            below,
        )
        if after == (True, "[0-9]+"):
            if parts and parts[-1][1] == _ANY_DIGITS:
                parts[-1] = (parts[-1][0] + str(digit), _ANY_DIGITS)
            else:
                parts.append((str(digit), _ANY_DIGITS))
        elif after[1] is not None:
            parts.append((str(digit), _group(after[1]) + ("?" if after[0] else "")))
        elif after[0]:
            parts.append((str(digit), ""))
    texts = [(f"[{digits}]" if len(digits) > 1 else digits) + rest for digits, rest in parts]
    return may_stop, _any_of(texts)


# ---- exponents ---------------------------------------------------------------------------------


def _scientific(span: Span) -> str | None:
    """The numbers of a span from 0 on, with an exponent."""
    assert span.low is not None
    parts: list[str | None] = []
    if span.low == 0 and not span.above:
        parts.append(r"0(?:\.0+)?[eE][+-]?[0-9]+")
    if span.high == 0:
        return _any_of(parts)
    least = _SMALLEST if span.low == 0 else max(_SMALLEST, _exponent(span.low))
    most = _LARGEST if span.high is None else min(_LARGEST, _exponent(span.high))
    edges = {e for e, bound in ((least, span.low), (most, span.high)) if bound}
    for before in range(4):  # digits before the point; 0 of them: ``0.`` and another digit
        shift = before - 1
        mantissa = rf"[1-9]{_count(shift)}(?:\.[0-9]+)?" if before else r"0\.[1-9][0-9]*"
        inner = [e for e in (least, most) if e not in edges]
        first = least if least in inner else least + 1
        last = most if most in inner else most - 1
        if first <= last:
            parts.append(f"{mantissa}[eE]{_group(_exponents(first - shift, last - shift))}")
        for edge in sorted(edges):
            if not least <= edge <= most:
                continue
            power = Fraction(10) ** (edge - shift)
            part = Span(
                span.low / power,
                None if span.high is None else span.high / power,
                span.above,
                span.below,
            ).both(Span(Fraction(10) ** shift, Fraction(10) ** before, below=True))
            text = None if part.is_empty else _decimal(part)
            if text is not None:
                exponent = _exponents(edge - shift, edge - shift)
                parts.append(f"{_group(text)}[eE]{_group(exponent)}")
    return _any_of(parts)


def _exponent(value: Fraction) -> int:
    """The exponent of a positive number with one digit before the point."""
    found = len(str(value.numerator)) - len(str(value.denominator))
    while Fraction(10) ** found > value:
        found -= 1
    while Fraction(10) ** (found + 1) <= value:
        found += 1
    return found


def _exponents(first: int, last: int) -> str:
    """The integers of a range, as exponents are written."""
    parts = []
    if last >= 0:
        parts.append(rf"\+?0*{_group(_between(max(first, 0), last) or '')}")
    if first <= 0:
        parts.append(f"-0*{_group(_between(max(-last, 0), -first) or '')}")
    return "|".join(parts)


# ---- multiples ---------------------------------------------------------------------------------


def _literal(value: Fraction, *, whole: bool) -> str:
    """One number in digits."""
    sign = "-?" if value == 0 else "-" if value < 0 else ""
    number, rest = _cut(abs(value))
    if whole:
        return f"{sign}{number}"
    return sign + str(number) + (rf"\.{rest}0*" if rest else r"(?:\.0+)?")


def _multiple_of(step: Fraction) -> str | None:
    """The multiples of a step whose last digits tell; None if they do not, or are too many."""
    places = 0
    while (step * 10**places).denominator > 1:
        places += 1
        if places > _LONGEST:
            return None
    count = int(step * 10**places)
    tail = 0  # so many last digits tell
    while 10**tail % count:
        tail += 1
        if tail > 9 or 10**tail // max(1, gcd(count, 10**tail)) > _TAILS:
            return None
    if 10**tail // count > _TAILS:
        return None
    ends = [f"{n:0{tail}d}" if tail else "" for n in range(0, 10**tail, count)]
    if tail <= places:
        free = places - tail
        given = [end.rstrip("0") for end in ends if end.strip("0")]
        after = ["0+"] + ([f"[0-9]{{1,{free}}}0*"] if free else [])
        after += [f"{_count(free)}{_group('|'.join(given))}0*"] if given else []
        return rf"{ANY_INTEGER}(?:\.(?:{'|'.join(after)}))?"
    parts = []
    groups: dict[str, list[str]] = {}
    for end in ends:
        cut = tail - places
        groups.setdefault(end[cut:].rstrip("0"), []).append(end[:cut])
    for rest, heads in groups.items():
        alone = sorted({head.lstrip("0") or "0" for head in heads}, key=len)
        longer = f"[1-9][0-9]*{_group('|'.join(heads))}"
        fraction = rf"\.{rest}0*" if rest else r"(?:\.0+)?"
        parts.append(f"{_group('|'.join([*alone, longer]))}{fraction}")
    return f"-?{_group('|'.join(parts))}"


def bounded(value: Fraction) -> bool:
    """Whether a bound is one that can be written."""
    return abs(value) < 10**_LONGEST and replace(Span(value), high=value).low == value
