"""Templates under limits: whatever they do with whatever messages, they come to an end."""

from __future__ import annotations

import time
from typing import Any

import pytest

from mlxgen import PromptError, Vocabulary
from mlxgen.chat import Chat
from mlxgen.chat.template.sandbox import RenderLimits, SandboxedTemplate
from tests.fakes import byte_level_tokenizer

LIMITS = RenderLimits(seconds=0.2, characters=100_000)
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
}
TOO_LARGE = {
    "output": LOOP + LOOP + "{{ a.content }}{% endfor %}{% endfor %}",
    "a block": "{% set x %}" + LOOP + LOOP + "{{ a.content }}{% endfor %}{% endfor %}{% endset %}",
    "a macro": "{% macro f() %}" + LOOP * 2 + "{{ a.content }}{% endfor %}{% endfor %}"
    "{% endmacro %}{% set x = f() %}",
    "multiplication": "{% set x = 'a' * 1000000000000 %}",
    "multiplication of what came": "{% set x = messages[0].content * 100000000 %}",
    "multiplication of lists": "{% set x = messages * 10000000000 %}",
    "the other way round": "{% set x = 10000000000 * 'a' %}",
    "addition": "{% set ns = namespace(s='a') %}"
    + LOOP
    + "{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "concatenation": "{% set ns = namespace(s='a') %}" + LOOP + "{% set ns.s = ns.s ~ ns.s %}"
    "{% endfor %}",
    "join": "{% set x = messages | join(messages[0].content * 100) %}",
    "join as a method": "{% set x = (messages[0].content * 100).join(messages|map('string')) %}",
    "replace": "{% set x = messages[0].content | replace('a', messages[0].content * 100) %}",
    "replace as a method": "{% set x = messages[0].content.replace('a', 'b' * 9000) %}",
    "powers": "{% set x = 10 ** 100000000000 %}",
    "powers of powers": "{% set ns = namespace(s=10) %}" + LOOP + "{% set ns.s = ns.s * ns.s %}"
    "{% endfor %}",
    "center": "{% set x = 'a' | center(10000000000) %}",
    "center as a method": "{% set x = 'a'.center(10000000000) %}",
    "indent": "{% set x = 'a\nb' | indent(10000000000) %}",
    "batch": "{% set x = messages | batch(10000000000, 'a') | list %}",
    "slice": "{% set x = messages | slice(10000000000) | list %}",
    "sums of lists": "{% set x = messages | map('list') | sum(start=[]) %}",
    "widths": "{% set x = '%10000000000d' % 1 %}",
    "widths that come": "{% set x = '%*d' % (10000000000, 1) %}",
    "the filter format": "{% set x = '%10000000000d' | format(1) %}",
    "the method format": "{% set x = '{:>10000000000}'.format(1) %}",
    "ranges": "{% set x = range(1000000000) | list %}",
    "lipsum": "{% set x = lipsum(n=1000000) %}",
    "a list that doubles": "{% set ns = namespace(l=messages) %}{% for i in range(40) %}"
    "{% set ns.l = ns.l + ns.l %}{% endfor %}",
    "a list of strings that doubles": "{% set ns = namespace(l=['a' * 90000]) %}"
    "{% for i in range(19) %}{% set ns.l = ns.l + ns.l %}{% endfor %}{% set x = ns.l | join %}",
    "a list that doubles as JSON": "{% set ns = namespace(l=['a' * 90000]) %}"
    "{% for i in range(19) %}{% set ns.l = ns.l + ns.l %}{% endfor %}{% set x = ns.l | tojson %}",
    "a list that holds itself twice": "{% set ns = namespace(l=['a']) %}{% for i in range(60) %}"
    "{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
    "the same joined to a text": "{% set ns = namespace(l=['a']) %}{% for i in range(60) %}"
    "{% set ns.l = [ns.l, ns.l] %}{% endfor %}{% set x = 'a' ~ ns.l %}",
    "the same as a string": "{% set ns = namespace(l=['a']) %}{% for i in range(60) %}"
    "{% set ns.l = [ns.l, ns.l] %}{% endfor %}{% set x = ns.l | string %}",
    "the same formatted": "{% set ns = namespace(l=['a']) %}{% for i in range(60) %}"
    "{% set ns.l = [ns.l, ns.l] %}{% endfor %}{% set x = '%s' % (ns.l,) %}",
    "tojson": "{% set x = messages | tojson(indent=10000000) %}",
}


def render(template: str, limits: RenderLimits | None = LIMITS) -> list[int]:
    wrapper = byte_level_tokenizer()
    wrapper.chat_template = f"x{template}"
    return Chat(MANY).tokens(Vocabulary.of(wrapper), limits)


@pytest.mark.parametrize("name", NEVER_ENDING)
def test_what_would_not_end_is_stopped(name: str) -> None:
    with pytest.raises(PromptError, match="processor time"):
        render(NEVER_ENDING[name])


@pytest.mark.parametrize("name", TOO_LARGE)
def test_what_would_be_too_large_is_never_made(name: str) -> None:
    began = time.thread_time()
    with pytest.raises(PromptError, match="chat template"):
        render(TOO_LARGE[name])
    assert time.thread_time() - began < 20  # not for good


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
    assert len(render("{% for m in messages %}{{ m.content * 2 }}{% endfor %}", None)) > 100_000


def test_programs_are_stopped_too() -> None:
    def program(messages: list[Any], **_: Any) -> str:
        text = ""
        while True:
            text = text[:10] + str(len(messages))

    wrapper = byte_level_tokenizer()
    wrapper._chat_template = program
    chat = Chat(MANY)
    with pytest.raises(PromptError, match="processor time"):
        chat.tokens(Vocabulary.of(wrapper), LIMITS)
