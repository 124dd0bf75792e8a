"""The formats of strings that are enforced, each as a pattern of the whole text.

Other formats are notes, as JSON Schema has it: what they ask for is left out, and said.
"""

from __future__ import annotations

from collections.abc import Mapping

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
        "ipvanyaddress": f"{_IPV4}|{_ipv6()}",  # as pydantic has it, and the kinds of UUID
        "uuid": _uuid("[0-9a-fA-F]{4}-[0-9a-fA-F]{4}"),
        **{f"uuid{n}": _uuid(f"{n}[0-9a-fA-F]{{3}}-[89abAB][0-9a-fA-F]{{3}}") for n in range(1, 9)},
        "uri": _URI,
        "uri-reference": f"{_URI}|{_RELATIVE}",
        "json-pointer": _POINTER,
        "relative-json-pointer": f"(?:0|[1-9][0-9]*)(?:#|{_POINTER})",
    }.items()
}
