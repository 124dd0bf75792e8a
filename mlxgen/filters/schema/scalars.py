"""Values that contain no others: what is said about numbers and strings, as terminals.

What the terminals do not hold is added to ``checked``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from math import gcd, lcm
from typing import Any

from ...errors import GrammarError
from . import numbers
from .characters import ANY_CHAR, FREE_CHAR
from .formats import FORMATS
from .keywords import Schema, fraction, lengths_of, literal, span_of
from .numbers import Span
from .patterns import UnsupportedError, spelled
from .written import Either, Expression, Term

_MODULUS = 10_000  # the engine counts multiples in as many states
_FAR = 2**53  # it rounds bounds beyond


def number(plain: Sequence[Schema], checked: dict[str, None], *, whole: bool) -> Expression:
    span = span_of(plain)
    steps = [fraction(s["multipleOf"]) for s in plain if "multipleOf" in s]
    if any(step <= 0 for step in steps):
        raise GrammarError("multipleOf must be above 0")
    kind = "integers" if whole else "numbers"
    found = numbers.numbers(span, whole=whole)
    if steps:
        step = Fraction(lcm(*(s.numerator for s in steps)), gcd(*(s.denominator for s in steps)))
        if whole:
            step = Fraction(step.numerator)
        multiples = numbers.multiples(step, span, whole=step.denominator == 1)
        if multiples is not None:
            kind, found = "such multiples", multiples if multiples.every else None
        else:
            near = all(-_FAR <= bound <= _FAR for bound in (span.low or 0, span.high or 0))
            if near and step.denominator == 1 and step <= _MODULUS:
                return f"%json {json.dumps(_bounded(span.whole(), step))}"
            checked["multipleOf"] = None
    return Either(why=f"there are no {kind} {_shown(span)}") if found is None else Term(found.lark)


def string(plain: Sequence[Schema], checked: dict[str, None]) -> Term | Either:
    least, most = lengths_of(plain, "minLength", "maxLength")
    if most is not None and most < least:
        return Either(why=f"minLength {least} is above maxLength {most}")
    texts = []
    for schema in plain:
        name = schema.get("format")
        if isinstance(name, str) and name in FORMATS:
            texts.append(f"({spelled(FORMATS[name])})")
        if "pattern" in schema:
            try:
                texts.append(f"({spelled(schema['pattern'])})")
            except UnsupportedError:
                checked["pattern"] = None
                with suppress(UnsupportedError):  # not even a little of it is held
                    texts.append(f"({spelled(schema['pattern'], loose=True)})")
    texts = list(dict.fromkeys(texts))
    if not texts or least or most is not None:
        char = ANY_CHAR if texts else FREE_CHAR
        count = f"{{{least},{'' if most is None else most}}}" if least or most is not None else "*"
        texts.append(f"/\\x{{22}}(?:{char}){count}\\x{{22}}/")
    return Term(" & ".join(texts))


def _shown(span: Span) -> str:
    low = "" if span.low is None else f"{'above' if span.above else 'from'} {_plain(span.low)}"
    high = "" if span.high is None else f"{'below' if span.below else 'to'} {_plain(span.high)}"
    return f"{low} {high}".strip()


def _bounded(span: Span, step: Fraction) -> Schema:
    bounds = {"minimum": span.low, "maximum": span.high, "multipleOf": step}
    known = {name: int(bound) for name, bound in bounds.items() if bound is not None}
    return {"type": "integer", **known}


def _plain(value: Fraction) -> int | float:
    return value.numerator if value.denominator == 1 else float(value)


def scalar(value: Any) -> str:
    """A value that contains no others, as a terminal."""
    if isinstance(value, str):
        return literal(value)
    if isinstance(value, bool) or value is None:
        return f'"{json.dumps(value)}"'
    if isinstance(value, int):
        return f'"{value}"'
    number = Fraction(Decimal(repr(value)) if isinstance(value, float) else value)
    if number.denominator == 1 and numbers.bounded(number):
        return f"/{number.numerator}(?:\\.0+)?/"
    return f'"{value}"'


def either(parts: Sequence[Expression], why: str) -> Expression:
    """One of these, with all terminals as one."""
    texts = dict.fromkeys(part.text for part in parts if isinstance(part, Term))
    rest = [part for part in parts if not isinstance(part, Term)]
    rest = [part for part in rest if not isinstance(part, Either) or part.options]
    terms = [Term(" | ".join(texts))] if texts else []
    return terms[0] if terms and not rest else Either((*terms, *rest), why)
