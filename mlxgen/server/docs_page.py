"""``/docs``: the OpenAPI description for people, as one page without a script.

Owns the HTML. Must never know an endpoint. It is made here because the usual viewers load their
scripts from other hosts, and this server works offline. Invariant: all text of the description is
escaped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from typing import Any

from .openapi import resolve

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 2.5rem; border-top: 1px solid; padding-top: 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .2rem .8rem .2rem 0; }
code { font-family: ui-monospace, monospace; font-size: .9em; }
summary { cursor: pointer; }
"""
_CODE = re.compile("``(.+?)``")
_DEEP = 6  # levels of a field's type that are shown


def docs_page(whole: Mapping[str, Any]) -> str:
    """The page."""
    title = escape(f"{whole['info']['title']} {whole['info']['version']}")
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width">',
        f"<title>{title}</title><style>{_STYLE}</style><h1>{title}</h1>",
        f"<p>{_prose(whole['info'].get('description', ''))}</p>",
        '<p>For programs: <a href="openapi.json">openapi.json</a>.</p>',
    ]
    for path, methods in whole["paths"].items():
        for method, operation in methods.items():
            parts.append(_operation(whole, path, method, operation))
    parts.append("<h2>Objects</h2>")
    for name, schema in whole["components"]["schemas"].items():
        if "properties" in schema:
            about = _prose(schema.get("description", "").partition("\n")[0])
            parts.append(f"<h3><code>{escape(name)}</code></h3><p>{about}</p>")
            parts.append(_fields(whole, schema))
    return "".join(parts)


def _operation(
    whole: Mapping[str, Any], path: str, method: str, operation: Mapping[str, Any]
) -> str:
    parts = [
        f"<h2><code>{escape(method.upper())} {escape(path)}</code></h2>",
        f"<p>{_prose(operation.get('description') or operation.get('summary', ''))}</p>",
    ]
    body = operation.get("requestBody")
    if body is not None:
        schema = resolve(whole, body["content"]["application/json"]["schema"])
        parts.append(_fields(whole, schema))
    rows = "".join(
        f"<tr><td><code>{escape(status)}</code></td><td>{_prose(answer['description'])}</td></tr>"
        for status, answer in operation["responses"].items()
    )
    parts.append(f"<details><summary>Answers</summary><table>{rows}</table></details>")
    return "".join(parts)


def _fields(whole: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    required = schema.get("required", ())
    rows = []
    for name, field in schema.get("properties", {}).items():
        about = field.get("description", "")
        needed = "required. " if name in required else ""
        default = field.get("default")
        if isinstance(default, int | float) and not isinstance(default, bool):
            about += f" (default {default:g})"
        rows.append(
            f"<tr><td><code>{escape(name)}</code></td>"
            f"<td><code>{escape(_type(whole, field))}</code></td>"
            f"<td>{_prose(needed + about)}</td></tr>"
        )
    return f"<table><tr><th>Field</th><th>Type</th><th></th></tr>{''.join(rows)}</table>"


def _prose(text: str) -> str:
    """A sentence, in which double backquotes mark code."""
    return _CODE.sub(r"<code>\1</code>", escape(text))


def _type(whole: Mapping[str, Any], field: Mapping[str, Any], deep: int = 0) -> str:
    """A field's type in a few words."""
    if deep > _DEEP:
        return "..."
    if "$ref" in field:
        named = resolve(whole, field)
        return (
            str(field["$ref"].rpartition("/")[2])
            if named.get("type") == "object"
            else (_type(whole, named, deep + 1))
        )
    for several in ("anyOf", "oneOf"):
        if several in field:
            kinds = dict.fromkeys(_type(whole, kind, deep + 1) for kind in field[several])
            kinds.pop("null", None)
            return " | ".join(kinds)
    if "const" in field or "enum" in field:
        return " | ".join(map(repr, field.get("enum", [field.get("const")])))
    if field.get("type") == "array":
        return f"list of {_type(whole, field.get('items', {}), deep + 1)}"
    kind = field.get("type", "anything")
    text = " | ".join(kind) if isinstance(kind, list) else str(kind)
    low = field.get("minimum", field.get("exclusiveMinimum"))
    high = field.get("maximum", field.get("exclusiveMaximum"))
    if low is None and high is None:
        return text
    return f"{text} {'' if low is None else low}..{'' if high is None else high}"
