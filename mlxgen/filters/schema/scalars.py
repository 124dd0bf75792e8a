"""Scalar values: what is said about numbers and strings, as terminals.

Keywords that the terminals do not enforce are added to ``checked``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from math import gcd, lcm
from typing import Any

from ...errors import GrammarError
from . import numbers
from .characters import ANY_CHAR, FREE_CHAR
from .keywords import Schema, fraction, lengths_of, literal, span_of
from .numbers import Span
from .patterns import UnsupportedError, spelled
from .written import Either, Expression, Term


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
                with suppress(UnsupportedError):  # none of it can be enforced
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


def _plain(value: Fraction) -> int | float:
    return value.numerator if value.denominator == 1 else float(value)


def scalar(value: Any) -> str:
    """A scalar value, as a terminal."""
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
    """One of these parts, with all terminals merged into one."""
    texts = dict.fromkeys(part.text for part in parts if isinstance(part, Term))
    rest = [part for part in parts if not isinstance(part, Term)]
    rest = [part for part in rest if not isinstance(part, Either) or part.options]
    terms = [Term(" | ".join(texts))] if texts else []
    return terms[0] if terms and not rest else Either((*terms, *rest), why)


# ---- formats -------------------------------------------------------------------------------------

_YEAR = "[0-9]{4}"
_LEAP = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    f"|{_LEAP}-02-29)"
)
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?"
_ZONE = "(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"

_CLOCK = "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
_CALENDAR = "(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
_DURATION = f"P(?:{_CALENDAR}(?:{_CLOCK})?|{_CLOCK}|[0-9]+W)"

_LABEL = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_HOST = rf"{_LABEL}(?:\.{_LABEL})*"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_BYTE}(?:\.{_BYTE}){{3}}"
_ATOM = r"[a-zA-Z0-9!#$%&'*+\-/=?^_`{|}~]+"
_EMAIL = rf"{_ATOM}(?:\.{_ATOM})*@(?:{_HOST}|\[{_IPV4}\])"


def _ipv6() -> str:
    part = "[0-9a-fA-F]{1,4}"
    options = [f"(?:{part}:){{7}}{part}", f"(?:{part}:){{6}}{_IPV4}"]
    for before in range(8):  # parts before the ``::``
        left = f"{part}(?::{part}){{{before - 1}}}" if before else ""
        after, beside = 6 - before, 5 - before
        right = f"(?:{part}(?::{part}){{0,{after}}})?" if after >= 0 else ""
        options.append(f"{left}::{right}")
        if beside >= 0:
            options.append(f"{left}::(?:{part}:){{0,{beside}}}{_IPV4}")
    return "|".join(options)


def _uuid(middle: str) -> str:
    return f"[0-9a-fA-F]{{8}}-[0-9a-fA-F]{{4}}-{middle}-[0-9a-fA-F]{{12}}"


_PATH = r"(?:[a-zA-Z0-9\-._~!$&'()*+,;=:@]|%[0-9a-fA-F]{2})"
_QUERY = rf"(?:{_PATH}|[/?])*"
_USER = r"(?:[a-zA-Z0-9\-._~!$&'()*+,;=:]|%[0-9a-fA-F]{2})*"
_NAME = r"(?:[a-zA-Z0-9\-._~!$&'()*+,;=]|%[0-9a-fA-F]{2})*"
_FUTURE = r"v[0-9a-fA-F]+\.[a-zA-Z0-9\-._~!$&'()*+,;=:]+"
_AUTHORITY = rf"(?:{_USER}@)?(?:\[(?:{_ipv6()}|{_FUTURE})\]|{_IPV4}|{_NAME})(?::[0-9]*)?"
_AFTER_PATH = rf"(?:\?{_QUERY})?(?:#{_QUERY})?"
_ROOTED = rf"//{_AUTHORITY}(?:/{_PATH}*)*|/(?:{_PATH}+(?:/{_PATH}*)*)?"
_URI = rf"[a-zA-Z][a-zA-Z0-9+\-.]*:(?:{_ROOTED}|{_PATH}+(?:/{_PATH}*)*)?{_AFTER_PATH}"
_SEGMENT = r"(?:[a-zA-Z0-9\-._~!$&'()*+,;=@]|%[0-9a-fA-F]{2})+"
_RELATIVE = rf"(?:{_ROOTED}|{_SEGMENT}(?:/{_PATH}*)*)?{_AFTER_PATH}"
_POINTER = "(?:/(?:[^/~]|~[01])*)*"

FORMATS: Mapping[str, str] = {
    name: f"^(?:{pattern})$"
    for name, pattern in {
        "date-time": f"{_DATE}[tT]{_TIME}{_ZONE}",
        "date": _DATE,
        "time": f"{_TIME}{_ZONE}",
        "duration": _DURATION,
        "email": _EMAIL,
        "hostname": _HOST,
        "ipv4": _IPV4,
        "ipv6": _ipv6(),
        "ipvanyaddress": f"{_IPV4}|{_ipv6()}",  # pydantic's, as are the kinds of UUID
        "uuid": _uuid("[0-9a-fA-F]{4}-[0-9a-fA-F]{4}"),
        **{f"uuid{n}": _uuid(f"{n}[0-9a-fA-F]{{3}}-[89abAB][0-9a-fA-F]{{3}}") for n in range(1, 9)},
        "uri": _URI,
        "uri-reference": f"{_URI}|{_RELATIVE}",
        "json-pointer": _POINTER,
        "relative-json-pointer": f"(?:0|[1-9][0-9]*)(?:#|{_POINTER})",
    }.items()
}
"""The formats of strings that are enforced, each as a pattern of the whole text. Others are
annotations, as in JSON Schema: they are not enforced, and ``notes`` names them."""
