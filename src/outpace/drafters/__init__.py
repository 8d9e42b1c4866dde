"""Finding drafters: files of this package, and entry points of the group `outpace.drafters`.

What several of them share stands in the package `parts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from inspect import isabstract
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, cast

from outpace.errors import OptionError
from outpace.params import refuse_unknown

if TYPE_CHECKING:
    from outpace.drafters.base import Drafter, DrafterOptions

ENTRY_POINT_GROUP = "outpace.drafters"
DEFAULT_METHOD = "auto"
"""What drafts where no method is named."""


@cache
def available_methods() -> tuple[str, ...]:
    """Names of all drafting methods, built in and installed by others, in alphabetical order."""
    built_in = {module.name for module in iter_modules(__path__) if not module.ispkg} - {"base"}
    return tuple(sorted(built_in | set(entry_points(group=ENTRY_POINT_GROUP).names)))


def drafter_class(method: str | type[Drafter]) -> type[Drafter]:
    """The class behind a method name; a class is taken as it is, so that a drafter can be tried
    before it is installed. Raises OptionError naming the known methods."""
    from outpace.drafters.base import Drafter

    if isinstance(method, type) and issubclass(method, Drafter):
        return method
    if method not in available_methods():
        known = ", ".join(available_methods())
        raise OptionError(f"unknown speculative method {method!r}; known methods: {known}")
    for point in entry_points(group=ENTRY_POINT_GROUP, name=method):
        return cast("type[Drafter]", point.load())
    module = import_module(f"{__name__}.{method}")
    (found,) = (
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and value.__module__ == module.__name__
        and hasattr(value, "propose")
        and not isabstract(value)
    )
    return found


def options_of(method: str | type[Drafter]) -> type[DrafterOptions]:
    """The options class of a method."""
    return drafter_class(method).Options


def make_options(method: str | type[Drafter], values: Mapping[str, Any]) -> DrafterOptions:
    """A method's options from a mapping. Raises OptionError naming an unknown or missing key."""
    drafter = drafter_class(method)
    options = drafter.Options
    known = [f.name for f in fields(options)]
    refuse_unknown(f"{drafter.method_name()!r} option", values, known)
    return options(**values)
