"""Where chat templates run: Jinja's immutable sandbox, with bounds on the work they may cause.

A template comes with the model and is not trusted, and neither are the messages. The sandbox keeps
a template from the interpreter; the bounds here end loops, calls and texts that would go on for
hours or fill the memory.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from outpace.errors import OptionError

# Of a prompt, and of any text or list that a template makes on the way. Contexts of a million
# tokens have about half as many characters.
MAX_CHARS = 8 * 2**20
# A round of a loop, or a filter, is a step, a call as many as it takes of their time. Published
# templates take a few dozen for a message.
MAX_STEPS = 1_000_000
_STEPS_OF_CALL = 20
# Numbers given to functions (widths, counts), and bits of numbers that are computed.
_MAX_NUMBER = 2**20
_MAX_BITS = 4096

_LONG_FORMAT = re.compile(r"%[^a-zA-Z%]*(\*|\d{5})")
_steps: ContextVar[list[int]] = ContextVar("steps of the template that is rendered")


class ChatSandbox:
    """A template made ready to run. Raises jinja2's errors where it is not valid."""

    def __init__(self, source: str) -> None:
        environment = _Environment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
        )
        tree = environment.parse(source)
        self.variables = meta.find_undeclared_variables(tree)
        self._template = environment.from_string(_with_bounds(tree, environment))

    def render(self, values: Mapping[str, Any]) -> str:
        """The text. Raises OptionError where a bound is passed, else whatever the template does."""
        before = _steps.set([0])
        try:
            pieces, size = [], 0
            for piece in self._template.generate(**values):
                size += len(piece)
                _check_size(size)
                pieces.append(piece)
            return "".join(pieces)
        finally:
            _steps.reset(before)


class _Environment(ImmutableSandboxedEnvironment):
    """The environment that templates are written for, which is transformers': its filters,
    functions and settings of whitespace."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.filters["tojson"] = _tojson
        self.filters = {name: _bounded(call) for name, call in self.filters.items()}
        self.filters |= {"bounded loop": _bounded_loop, "bounded concat": _bounded_concat}
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        _spend(_STEPS_OF_CALL)
        _check_numbers(args, kwargs)
        return _check_result(super().call(context, function, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _check_operation(operator, left, right)
        return super().call_binop(context, operator, left, right)


class _GenerationBlock(Extension):
    """`{% generation %}` marks the assistant's words for training; here it is its content."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's own declaration)

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _with_bounds(tree: nodes.Template, environment: jinja2.Environment) -> nodes.Template:
    """Every loop counts its rounds, every `~` its characters; the sandbox has no hook for these."""
    for loop in tree.find_all(nodes.For):
        loop.iter = _filtered(loop.iter, "bounded loop")
    _replace_concats(tree)
    tree.set_environment(environment)
    return tree


def _replace_concats(node: Node) -> None:
    for name, value in list(node.iter_fields()):
        if isinstance(value, list):
            setattr(node, name, [_replaced(one) for one in value])
        else:
            setattr(node, name, _replaced(value))


def _replaced(value: Any) -> Any:
    if not isinstance(value, Node):
        return value
    _replace_concats(value)
    if isinstance(value, nodes.Concat):
        return _filtered(nodes.List(value.nodes, lineno=value.lineno), "bounded concat")
    return value


def _filtered(node: Node, name: str) -> nodes.Filter:
    assert isinstance(node, nodes.Expr), "only expressions have a value to filter"
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


@jinja2.pass_context  # keeps Jinja from running it while it compiles
def _bounded_loop(context: Context, values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        _spend()
        yield value


@jinja2.pass_context
def _bounded_concat(context: Context, values: list[Any]) -> str:
    texts = [str(value) for value in values]
    _check_size(sum(map(len, texts)))
    return "".join(texts)


def _bounded(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)  # also Jinja's marks, which stand in the function's attributes
    def bounded(*args: Any, **kwargs: Any) -> Any:
        _spend()
        _check_numbers(args, kwargs)
        return _check_result(function(*args, **kwargs))

    return bounded


def _spend(num_steps: int = 1) -> None:
    steps = _steps.get(None)
    if steps is None:  # while a template is compiled, where its constants are computed
        return
    steps[0] += num_steps
    if steps[0] > MAX_STEPS:
        raise OptionError(
            f"the chat template takes more than {MAX_STEPS} steps for these messages; send fewer "
            "messages, or use a model with another template"
        )


def _check_size(size: int) -> None:
    if size > MAX_CHARS:
        raise OptionError(
            f"the chat template makes a text of more than {MAX_CHARS} characters of these "
            "messages; send less"
        )


def _check_result(value: Any) -> Any:
    if isinstance(value, str | list | tuple):
        _check_size(len(value))
    return value


def _check_numbers(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, int) and abs(value) > _MAX_NUMBER:
            raise OptionError(
                f"the chat template calls a function with a number over {_MAX_NUMBER}"
            )


def _check_operation(operator: str, left: Any, right: Any) -> None:
    sizes = [len(side) for side in (left, right) if isinstance(side, str | list | tuple)]
    numbers = [side for side in (left, right) if isinstance(side, int)]
    if operator == "+" and len(sizes) == 2:
        _check_size(sum(sizes))
    elif operator == "*" and sizes and numbers:
        _check_size(sizes[0] * numbers[0])
    elif operator == "%" and isinstance(left, str):
        _check_size(len(left) if not _LONG_FORMAT.search(left) else MAX_CHARS + 1)
    elif operator in ("*", "**") and len(numbers) == 2:
        bits = numbers[0].bit_length() * (abs(numbers[1]) if operator == "**" else 1)
        if max(bits, numbers[1].bit_length()) > _MAX_BITS:
            raise OptionError(f"the chat template computes numbers of more than {_MAX_BITS} bits")


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML, which prompts must not.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise OptionError(f"the chat template refuses these messages: {message}")


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)
