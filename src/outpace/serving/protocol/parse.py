"""A request's JSON to its model; what is wrong with it in OpenAI's words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from outpace.serving.errors import ApiError

Model = TypeVar("Model", bound=BaseModel)
_OBJECT = "should be an object"
_WANTED = {"dict_type": _OBJECT, "model_type": _OBJECT, "model_attributes_type": _OBJECT}
MOST_NAMED = 10
"""Most unknown fields that a message names."""
SHOWN = 80
"""Most characters of a faulty value or name that a message repeats."""


def parse(model: type[Model], data: Any) -> Model:
    """The request that `data`, decoded JSON, is.

    Raises ApiError 400 with the path of the first field at fault as `param`; all unknown fields
    are named at once, with the known name that comes nearest.
    """
    if not isinstance(data, Mapping):
        raise ApiError(400, f"the body must be a JSON object, got {_shown(data)}")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        # A message of one kind may look like an unknown one: what is unknown is said last.
        known = [fault for fault in faults if fault["type"] != "extra_forbidden"]
        raise _fault(known[0], data) if known else _unknown(faults, model, data) from None


def _fault(fault: ErrorDetails, data: Any) -> ApiError:
    kind, value = fault["type"], fault["input"]
    path = ".".join(str(part) for part in _path(fault["loc"], data, kind == "missing"))
    if kind == "missing":
        return ApiError(400, f"{path} is required", param=path, code="missing_required_parameter")
    if kind == "refused":
        return ApiError(400, f"{path} {fault['msg']}", param=path, code="unsupported_parameter")
    if kind == "one_of_two":
        return ApiError(400, fault["msg"])
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        return _unknown_kind(fault, path)
    if kind == "too_short" and fault.get("ctx", {}).get("min_length") == 1:
        return ApiError(400, f"{path} must not be empty", param=path, code="invalid_value")
    code = "invalid_type" if kind.endswith("_type") else "invalid_value"
    wanted = _WANTED.get(kind) or fault["msg"].replace("Input should", "should")
    where = path or "the body"
    return ApiError(400, f"{where}: {wanted}, got {_shown(value)}", param=path or None, code=code)


def _unknown_kind(fault: ErrorDetails, path: str) -> ApiError:
    """What is told apart by one of its fields, which has none of the values that are known."""
    context = fault.get("ctx", {})
    name = str(context.get("discriminator", "")).strip("'").removesuffix("()")
    where = f"{path}.{name}" if path else name
    known = f"must be one of {context['expected_tags']}" if "expected_tags" in context else ""
    got = f"got {context['tag']!r:.{SHOWN}}" if "tag" in context else "is required"
    wanted = ", ".join(part for part in (known, got) if part)
    return ApiError(400, f"{where} {wanted}", param=where, code="invalid_value")


def _unknown(faults: list[ErrorDetails], model: type[BaseModel], data: Any) -> ApiError:
    # A body may hold very many: only those that are shown are looked at.
    paths = [list(_path(fault["loc"], data)) for fault in faults[:MOST_NAMED]]
    named, known = [], _names(model)
    for path in paths:
        near = get_close_matches(str(path[-1]), known, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        shown = ".".join(str(part) for part in path)
        named.append(f"{shown!r:.{SHOWN}}{hint}")
    more = len(faults) - len(named)
    shown = ", ".join(named) + (f" and {more} more" if more > 0 else "")
    what = "field" if len(faults) == 1 else "fields"
    param = ".".join(str(part) for part in paths[0])[:SHOWN]
    return ApiError(
        400, f"unknown {what} {shown}: nothing is ignored here", param=param, code="unknown_field"
    )


def _path(
    location: tuple[int | str, ...], data: Any, is_missing: bool = False
) -> Iterator[int | str]:
    """The steps of a location that are steps into the data: pydantic puts the names of the kinds
    of a union between them. is_missing: the last step leads to what is not there."""
    for step in location[:-1]:
        if _leads_into(step, data):
            yield step
            data = data[step]
    last = location[-1] if location else None
    if last is not None and (is_missing or _leads_into(last, data)):
        yield last


def _leads_into(step: int | str, data: Any) -> bool:
    if isinstance(data, Mapping):
        return step in data
    return isinstance(data, list) and isinstance(step, int) and step < len(data)


def _names(model: type[BaseModel]) -> set[str]:
    """The names of all fields of a model and of the models it is made of."""
    names: set[str] = set()
    waiting: list[Any] = [model]
    seen: set[int] = set()
    while waiting:
        kind = waiting.pop()
        if id(kind) in seen:
            continue
        seen.add(id(kind))
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            for name, field in kind.model_fields.items():
                names.add(field.alias or name)
                waiting.append(field.annotation)
        waiting.extend(get_args(kind))
    return names


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and abs(value) > 10**SHOWN:
        return "a very long number"
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."
