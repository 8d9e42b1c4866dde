"""Templates that mean harm, or would never end, are refused."""

from __future__ import annotations

from typing import Any

import pytest

from outpace.errors import OptionError
from outpace.models import chat_sandbox
from outpace.models.chat import ChatTemplate

USER = [{"role": "user", "content": "hi"}]


def render(template: str, messages: Any = USER) -> str:
    return ChatTemplate(template, {}).render(messages)


STEPS, CHARS = "more than 1000000 steps", "a text of more than 8388608 characters"


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            STEPS,
        ),
        ("{% for a in range(2000000) %}{% endfor %}", "a number over"),
        (
            "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
            "{{ f(60) }}",
            STEPS,
        ),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "cannot render"),
        (
            "{% set n = namespace(x='x') %}{% for a in range(60) %}"
            "{% set n.x = n.x ~ n.x %}{% endfor %}",
            CHARS,
        ),
        (
            "{% set n = namespace(x='x') %}{% for a in range(60) %}"
            "{% set n.x = n.x + n.x %}{% endfor %}",
            CHARS,
        ),
        (
            "{% set n = namespace(x=[1]) %}{% for a in range(60) %}"
            "{% set n.x = n.x + n.x %}{% endfor %}",
            CHARS,
        ),
        ("{{ 'x' * 99999999 }}", CHARS),
        ("{{ 99999999 * 'x' }}", CHARS),
        ("{{ [1] * 99999999 }}", CHARS),
        ("{% for a in range(9000) %}{{ 'x' * 1000 }}{% endfor %}", CHARS),
        ("{{ 9 ** 99999 }}", "numbers of more than 4096 bits"),
        ("{{ (9 ** 900) * (9 ** 900) * (9 ** 900) }}", "numbers of more than 4096 bits"),
        ("{{ '%99999999d' % 1 }}", CHARS),
        ("{{ 'x' | center(99999999) }}", "a number over"),
        ("{{ 'x'.ljust(99999999) }}", "a number over"),
        ("{{ 'x' | indent(99999999) }}", "a number over"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "cannot render"),
        ("{{ messages.__class__.__mro__ }}", "cannot render"),
        ("{{ messages[0].update({'role': 'x'}) }}", "cannot render"),
        ("{{ strftime_now.__globals__['json'] }}", "cannot render"),
        ("{{ (messages | map(attribute='__class__') | list)[0].mro() }}", "cannot render"),
        ("{% import 'os' as os %}", "cannot render"),
    ],
)
def test_harm_is_refused(template: str, reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        render(template)


@pytest.mark.parametrize(
    "value", ["messages.__class__", "raise_exception.__globals__", "'{0.__class__}'.format(1)"]
)
def test_what_is_private_is_not_there(value: str) -> None:
    assert render(f"[{{{{ {value} }}}}]") == "[]"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{% for a in [1, 2] %}{{ loop.index }}/{{ loop.length }}{% endfor %}", "1/22/2"),
        ("{% for a in 'abc' %}{{ loop.last }}{{ loop.nextitem }}{% endfor %}", None),
        ("{% for a in 'abc' if a != 'b' %}{{ a ~ loop.revindex }}{% endfor %}", "a2c1"),
        ("{% for k, v in {'a': 1}.items() %}{{ k ~ v }}{% endfor %}", "a1"),
        ("{% for a in [] %}x{% else %}none{% endfor %}", "none"),
        ("{% for a in missing %}x{% endfor %}", ""),
        ("{% for a in [[1, [2]], 3] recursive %}{{ loop.depth }}{% endfor %}", "11"),
        ("{{ 'a' ~ 1 ~ none }}{{ 'a' + 'b' }}{{ 2 ** 10 }}{{ 'x' * 3 }}", "a1Noneab1024xxx"),
        ("{{ '%s-%5d' % ('a', 3) }}{{ 7 % 4 }}", "a-    33"),
        ("{{ ('a' ~ ('b' ~ 'c')) | upper }}", "ABC"),
        ("{% set ns = namespace(n=0) %}{% for a in range(9) %}{% set ns.n = ns.n + a %}"
         "{% endfor %}{{ ns.n }}", "36"),
        ("{{ messages | map(attribute='role') | join(',') }}", "user"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "1"),
    ],
)  # fmt: skip
def test_what_templates_do_is_unchanged(template: str, expected: str | None) -> None:
    import jinja2

    plain = jinja2.Environment().from_string(template).render(messages=USER)
    assert render(template) == plain
    assert expected is None or plain == expected


def test_a_long_conversation_is_no_harm() -> None:
    template = "{% for m in messages %}{{ '<' ~ m.role ~ '>' + m.content | trim }}{% endfor %}"
    messages = [{"role": "user", "content": f"{index} "} for index in range(5000)]
    assert render(template, messages).endswith("<user>4999")


def test_one_prompt_does_not_pay_for_another() -> None:
    template = ChatTemplate("{% for a in range(60000) %}{% endfor %}x", {})
    for _ in range(20):
        assert template.render(USER) == "x"


def test_the_size_of_a_prompt_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_sandbox, "MAX_CHARS", 10)
    assert render("{{ messages[0].content }}12345678") == "hi12345678"
    with pytest.raises(OptionError, match="more than 10 characters"):
        render("{{ messages[0].content }}123456789")
