r"""Numbers between bounds, and multiples, as expressions of JSON text.

A number is compared with a bound digit by digit, once for each length that its integer part may
have: the numbers that first differ from the bound at a given digit, and go on freely, are one
alternative. A number with an exponent is compared by that first, and then likewise.

Invariant: a text of a number matches if and only if its exact value is in the span. Exponents are
limited to those that programs write: up to 300, after one digit and up to 17 more. Otherwise, where
95 is out of bounds, a model might write ``95.00000`` only because ``95e-2`` is allowed. Only 100
digits of a bound are compared; a longer one is drawn a little closer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, floor, gcd

_FRACTION = r"(?:\.[0-9]+)?"
ANY_INTEGER = r"-?(?:0|[1-9][0-9]*)"
ANY_NUMBER = rf"{ANY_INTEGER}{_FRACTION}(?:[eE][+-]?[0-9]+)?"
_ZERO = r"0(?:\.0+)?(?:[eE][+-]?[0-9]+)?"
_MANTISSA = r"[1-9](?:\.[0-9]{1,17})?"
_EXPONENT = "[eE][+-]?0*(?:[0-9]{1,2}|[12][0-9]{2}|300)"
_COMPARED = rf"{ANY_INTEGER}{_FRACTION}|-?(?:{_ZERO}|{_MANTISSA}{_EXPONENT})"
_ZEROS, _ONES, _TWOS = "[0369]", "[147]", "[258]"  # digits by what they leave when divided by 3
_THREES = (
    f"(?:{_ZEROS}|{_ONES}{_ZEROS}*{_TWOS}|(?:{_TWOS}|{_ONES}{_ZEROS}*{_ONES})"
    f"(?:{_ZEROS}|{_TWOS}{_ZEROS}*{_ONES})*(?:{_ONES}|{_TWOS}{_ZEROS}*{_TWOS}))+"
)
_LONGEST = 400  # digits of a bound
_DEEPEST = 100  # digits that are compared
_MOST = 500  # multiples that are listed
_FAR = 2**53  # beyond, the way from a few digits to a multiple is too long to be found


@dataclass(frozen=True, slots=True)
class Span:
    """The numbers from ``low`` to ``high`` (None: without a bound), or between them."""

    low: Fraction | None = None
    high: Fraction | None = None
    above: bool = False  # whether ``low`` itself is excluded
    below: bool = False  # whether ``high`` itself is excluded

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
        """The integers of the span, with both bounds included."""
        low, high = self.low, self.high
        if low is not None:
            low = Fraction(floor(low) + 1 if self.above else ceil(low))
        if high is not None:
            high = Fraction(ceil(high) - 1 if self.below else floor(high))
        return Span(low, high)


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts that all of the expressions ``every`` match, and none of ``no``."""

    every: tuple[str, ...]
    no: tuple[str, ...] = ()

    @property
    def lark(self) -> str:
        return " & ".join([*(f"/{text}/" for text in self.every), *(f"~/{t}/" for t in self.no)])


def numbers(span: Span, *, whole: bool = False) -> Texts | None:
    """The numbers of a span, or the integers; None if there are none."""
    span = span.whole() if whole else span
    if span.is_empty:
        return None
    if span == Span():
        return Texts((ANY_INTEGER if whole else ANY_NUMBER,))
    every = [ANY_INTEGER if whole else _COMPARED]
    if span.low is not None:
        every.append(_from(span.low, "", "-", whole))
    if span.high is not None:
        every.append(_from(-span.high, "-", "", whole))
    out = {span.low: span.above, span.high: span.below}
    return Texts(
        tuple(every), tuple(_equal(v) for v, is_out in out.items() if is_out and v is not None)
    )


def multiples(step: Fraction, span: Span, *, whole: bool) -> Texts | None:
    """The multiples of a step in a span; without expressions if there are none; None if they are
    too many to list and cannot be told by their digits. Multiples of an integer are integers."""
    span = span.whole() if whole else span
    if span.low is not None and span.high is not None and (span.high - span.low) / step <= _MOST:
        first = ceil(span.low / step)
        found = [step * n for n in range(first, floor(span.high / step) + 1)]
        kept = [v for v in found if not span.both(Span(v, v)).is_empty]
        texts = [_sign(v) + _plain(abs(v), whole=whole) for v in kept]
        return Texts(("|".join(texts),) if texts else ())
    plain = numbers(span, whole=whole)
    if plain is None:
        return Texts(())
    places = len(str(step.denominator)) - 1
    if step != Fraction(1, 10**places):
        near = all(-_FAR <= bound <= _FAR for bound in (span.low or 0, span.high or 0))
        told = _told(step.numerator) if near and step.denominator == 1 else ()
        return replace(plain, every=(*plain.every, *told)) if told else None
    tail = rf"(?:\.(?:0+|[0-9]{{1,{places}}}0*))?" if places else r"(?:\.0+)?"
    return replace(plain, every=(*plain.every, f"{ANY_INTEGER}{tail}"))


def _told(step: int) -> tuple[str, ...]:
    """What all multiples of an integer match, and no other integers: its factors 2 and 5 tell by
    the last digits, and a 3 by the sum of all; nothing if it has others."""
    ends, rest = gcd(step, 10_000), step // gcd(step, 10_000)
    if rest not in (1, 3):
        return ()
    size = next(size for size in range(5) if 10**size % ends == 0)
    found = [f"{multiple:0{size}d}" for multiple in range(0, 10**size, ends)]
    short = "|".join(str(int(each)) for each in found)
    told = [] if ends == 1 else [rf"-?(?:{short}|[1-9][0-9]*(?:{'|'.join(found)}))"]
    return (*told, *([rf"-?{_THREES}"] if rest == 3 else []))


# ---- one bound -----------------------------------------------------------------------------------


def _from(low: Fraction, plus: str, minus: str, whole: bool) -> str:
    """The numbers from a bound on; with the signs swapped, those up to it."""
    if low > 0:
        return f"{plus}(?:{_beyond(low, up=True, whole=whole)})"
    return rf"{plus}[0-9][0-9.eE+\-]*|{minus}(?:{_beyond(-low, up=False, whole=whole)})"


def _beyond(value: Fraction, *, up: bool, whole: bool) -> str:
    """The unsigned numbers at or above a value, or else at or below it."""
    digits, point = _digits(value)
    if len(digits) > _DEEPEST:
        unit = Fraction(10) ** (point - _DEEPEST)
        value = (ceil(value / unit) if up else floor(value / unit)) * unit
        digits, point = _digits(value)
    size = max(point, 1)
    fraction = "" if whole else _FRACTION
    written = digits if point > 0 else digits.rjust(len(digits) - point + 1, "0")
    parts = list(_compared(written, size, up=up, fraction=fraction))
    if up:
        parts.append(f"[1-9][0-9]{{{size},}}{fraction}")
    elif size > 1:
        parts.append(f"[0-9]{{1,{size - 1}}}{fraction}")
    if not whole:
        parts += [] if up else [_ZERO]
        if value:
            same = "|".join(_compared(digits, 1, up=up, fraction=fraction))
            parts.append(f"(?:{same})[eE](?:{_exponent(point - 1)})")
            parts.append(f"{_MANTISSA}[eE](?:{_exponents(point - 1, up=up)})")
    return "|".join(parts)


def _compared(digits: str, point: int, *, up: bool, fraction: str) -> Iterator[str]:
    """The numbers with ``point`` digits before the point that are at or above the one with these
    ``digits``, or else at or below it. Zeros at its end may be missing."""
    for i, digit in enumerate(digits):
        others = _range(int(digit) + 1, 9) if up else _range(0, int(digit) - 1)
        rest = f"{_count(point - i - 1)}{fraction}" if i < point else "[0-9]*"
        if others:
            yield f"{_pointed(digits[:i], point, i >= point)}{others}{rest}"
    same, zeros = _pointed(digits, point), point - len(digits)
    if up:
        yield same + (f"{_count(zeros)}{fraction}" if zeros >= 0 else "[0-9]*")
    elif zeros >= 0:
        yield f"{same}0{{{zeros}}}{fraction and '(?:[.]0+)?'}"
    else:
        yield f"{same}0*"
        yield from (_pointed(digits[:end], point) for end in range(max(point, 1), len(digits)))


def _exponents(edge: int, *, up: bool) -> str:
    """The exponents above ``edge``, or else below it."""
    least = edge + 1 if up else 1 - edge
    plus, minus = (r"\+?", "-") if up else ("-", r"\+?")
    if least > 0:
        return f"{plus}0*(?:{_beyond(Fraction(least), up=True, whole=True)})"
    return f"{plus}[0-9]+|{minus}0*(?:{_beyond(Fraction(-least), up=False, whole=True)})"


def _exponent(value: int) -> str:
    return "[+-]?0+" if not value else rf"\+?0*{value}" if value > 0 else f"-0*{-value}"


# ---- one number ----------------------------------------------------------------------------------


def _equal(value: Fraction) -> str:
    """All spellings of a number."""
    digits, point = _digits(abs(value))
    if not value:
        return f"-?{_ZERO}"
    tail = "0*" if len(digits) > 1 else "(?:[.]0+)?"
    short = f"{_pointed(digits, 1)}{tail}[eE](?:{_exponent(point - 1)})"
    return f"{_sign(value)}(?:{_plain(abs(value))}|{short})"


def _sign(value: Fraction) -> str:
    return "-?" if not value else "-" if value < 0 else ""


def _plain(value: Fraction, *, whole: bool = False) -> str:
    """One number that is not negative, in digits."""
    digits, point = _digits(value)
    number = digits[: max(point, 0)].ljust(point, "0") or "0"
    rest = digits[max(point, 0) :].rjust(len(digits) - point, "0") if len(digits) > point else ""
    if whole:
        return number
    return number + (rf"\.{rest}0*" if rest else r"(?:\.0+)?")


def _digits(value: Fraction) -> tuple[str, int]:
    """The digits of a number that is not negative, without zeros around them, and how many of them
    come before the point: 0 or less if the first one comes after it."""
    whole = floor(value)
    rest, after = value - whole, list[str]()
    while rest and len(after) < _LONGEST:
        rest *= 10
        after.append(str(floor(rest)))
        rest -= floor(rest)
    digits = f"{whole or ''}{''.join(after)}"
    ahead = len(digits) - len(digits.lstrip("0"))
    return digits.strip("0") or "0", len(str(whole)) if whole else -ahead if value else 1


def _pointed(digits: str, point: int, has_point: bool = False) -> str:
    """Digits with the point in its place; or a beginning of them."""
    if len(digits) <= point and not has_point:
        return digits
    return f"{digits[:point] or '0'}[.]{digits[point:]}"


def _range(first: int, last: int) -> str:
    return "" if first > last else str(first) if first == last else f"[{first}-{last}]"


def _count(digits: int) -> str:
    return f"[0-9]{{{digits}}}" if digits else ""


def bounded(value: Fraction) -> bool:
    """Whether a bound can be written in digits."""
    return abs(value) < 10**_LONGEST and (value * Fraction(10**_LONGEST)).denominator == 1
