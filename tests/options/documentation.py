"""The table of options as Markdown: ``python -m tests.options.documentation > docs/options.md``."""

from __future__ import annotations

from mlxgen.options.table import OPTIONS

HEAD = """\
# Options

The keyword-only options of `lm.stream`, `lm.generate`, `lm.batch`, `lm.control` and
`mlxgen.Session`. An editor shows the same for a keyword of a call, and so does
`help(mlxgen.LanguageModel.stream)`. `None` for any of them is its default, except for `max_tokens`.

| option | value | default | meaning |
|---|---|---|---|"""


def page() -> str:
    """The file."""
    lines = [HEAD]
    for name, option in OPTIONS.items():
        meaning = option.text.removesuffix(str(option.rule)).strip().replace("``", "`")
        lines.append(f"| `{name}` | {option.rule.allowed} | {option.rule.usually} | {meaning} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
