"""Templates under limits: whatever they do with whatever messages, they come to an end."""

from __future__ import annotations

import pytest

from mlxgen import PromptError, Vocabulary
from mlxgen.chat import Chat
from mlxgen.chat.template.sandbox import RenderLimits, SandboxedTemplate
from tests.fakes import byte_level_tokenizer

LIMITS = RenderLimits(seconds=0.2)
MANY = [{"role": "user", "content": "a" * 90}] * 1000
LOOP = "{% for a in messages %}"
NEVER_ENDING = {
    "loops": LOOP * 5 + "{% endfor %}" * 5,
    "ranges": "{% for a in range(90000) %}" * 3 + "{% endfor %}" * 3,
    "loops that take nothing": LOOP * 3 + "{% for b in messages if false %}{% endfor %}"
    "{% endfor %}" * 3,
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
    "{{ f(60) }}",
    "recursive loops": "{% for a in [[], []] recursive %}"
    "{{ loop(messages[:2]) if loop.depth < 60 }}{% endfor %}",
    "namespaces": "{% set ns = namespace(n=0) %}" + LOOP * 3 + "{% set ns.n = ns.n + 1 %}"
    "{% endfor %}" * 3,
    "texts": LOOP * 3 + "{{ a.content }}" + "{% endfor %}" * 3,
    "a block": "{% set x %}" + LOOP * 3 + "a" + "{% endfor %}" * 3 + "{% endset %}",
}


def render(template: str, limits: RenderLimits | None = LIMITS) -> list[int]:
    wrapper = byte_level_tokenizer()
    wrapper.chat_template = f"x{template}"
    return Chat(MANY).tokens(Vocabulary.of(wrapper), limits)


@pytest.mark.parametrize("name", NEVER_ENDING)
def test_what_would_not_end_is_stopped(name: str) -> None:
    with pytest.raises(PromptError, match="processor time"):
        render(NEVER_ENDING[name])


def test_the_values_of_templates_are_what_they_are_without_limits() -> None:
    template = SandboxedTemplate(
        "{{ 3 * 4 }}{{ 2 ** 10 }}{{ 'ab' * 3 }}{{ '%s-%d' % ('a', 5) }}{{ [1] * 2 }}{{ 1.5 * 2 }}"
        "{{ ['a', 'b'] | join('-') }}{{ 'a-b'.replace('-', '+') }}{{ 'x' | center(5) }}"
        "{{ '{:>4}|{}'.format(1, 'a') }}{{ {'a': 1} | tojson(indent=2) }}{{ [1, 2] | sum }}"
        "{{ [{'a': 'b'}, {'a': 'c'}] | join(',', attribute='a') }}{{ 'a' ~ 1 ~ none }}"
        "{{ 'a\nb' | indent(2) }}{{ x | default(1000000000) }}{{ range(3) | list }}"
    )
    with_limits = template.render({}, RenderLimits())
    assert with_limits == template.render({}, None)
    assert with_limits.startswith("121024abababa-5[1, 1]3.0a-ba+b  x     1|a{")


def test_the_library_has_no_limits_of_its_own() -> None:
    template = "{% for m in messages %}{{ m.content * 2 }}{% endfor %}"
    with pytest.raises(PromptError, match="processor time"):
        render(template, RenderLimits(seconds=0))
    assert len(render(template, None)) > 100_000
