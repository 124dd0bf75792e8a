"""``python -m mlxgen.options``: the table as Markdown, of which ``docs/options.md`` consists."""

from __future__ import annotations

from .table import OPTIONS

HEAD = """\
# Options

The keyword-only options of `lm.stream`, `lm.generate`, `lm.batch`, `lm.control` and
`mlxgen.Session`. An editor shows the same for a keyword of a call, and so does
`help(mlxgen.LanguageModel.stream)`. `None` for any of them is its default, except for `max_tokens`.

| option | value | default | meaning |
|---|---|---|---|"""

if __name__ == "__main__":
    print(HEAD)
    for name, option in OPTIONS.items():
        meaning = option.text.removesuffix(str(option.rule)).strip().replace("``", "`")
        print(f"| `{name}` | {option.rule.allowed} | {option.rule.usually} | {meaning} |")
