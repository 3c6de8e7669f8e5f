"""Plain values to the typed structs of a kind, with every problem found in one pass, each at its path.

msgspec alone stops at the first problem and does not say which element of a list it is in. It still checks every single value here,
so that the constraints are written once, in the types.
"""

from __future__ import annotations

import re
from enum import EnumType
from typing import Annotated, Any, TypeVar, get_args, get_origin

import msgspec
from msgspec import Meta

from shoal_api.kinds import later
from shoal_api.kinds.problems import FieldPath, Problem, near

S = TypeVar("S", bound=msgspec.Struct)

_WRONG = object()
_WORDS = {"NoneType": "null", "dict": "a mapping", "list": "a list"}


def convert(values: Any, struct: type[S]) -> tuple[S | None, list[Problem]]:
    """Return the struct, or None and what is wrong with `values`."""
    problems: list[Problem] = []
    result = _convert(values, struct, (), problems)
    return (None if problems else result), problems


def _convert(value: Any, kind: Any, path: FieldPath, problems: list[Problem]) -> Any:
    kind, metas = _unwrap(kind)
    origin = get_origin(kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _struct(value, kind, path, problems)
    if origin is list and isinstance(value, list):
        (element,) = get_args(kind)
        items = [_convert(item, element, (*path, index), problems) for index, item in enumerate(value)]
        return _leaf(items, Annotated[(list[Any], *metas)] if metas else list[Any], path, problems)
    if origin is dict and isinstance(value, dict):
        key_type, element = get_args(kind)
        return {
            _leaf(k, key_type, (*path, k), problems): _convert(v, element, (*path, k), problems)
            for k, v in value.items()
        }
    return _leaf(value, Annotated[(kind, *metas)] if metas else kind, path, problems)


def _struct(value: Any, struct: type[msgspec.Struct], path: FieldPath, problems: list[Problem]) -> Any:
    if not isinstance(value, dict):
        problems.append(Problem(f"expected a mapping, got {_shown(value)}", path))
        return _WRONG
    fields = {field.encode_name: field for field in msgspec.structs.fields(struct)}
    planned = later.FIELDS.get(_names(path), frozenset())
    for key in value:
        if key in fields:
            continue
        if key in planned:
            problems.append(Problem("not honoured yet by this release; leave it out", (*path, key)))
        else:
            problems.append(Problem(f"unknown field{near(key, fields)}", (*path, key)))
    before = len(problems)
    arguments: dict[str, Any] = {}
    for name, field in fields.items():
        present = value.get(name)
        if present is None:  # null is absent, as the API server has it
            if field.required:
                problems.append(Problem("required, and missing", (*path, name)))
            continue
        arguments[field.name] = _convert(present, field.type, (*path, name), problems)
    return struct(**arguments) if len(problems) == before else _WRONG


def _leaf(value: Any, kind: Any, path: FieldPath, problems: list[Problem]) -> Any:
    try:
        result = msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        problems.append(Problem(_explain(value, kind, str(error), path), path))
        return _WRONG
    pattern = next((meta.pattern for meta in _unwrap(kind)[1] if meta.pattern is not None), None)
    if pattern is not None and re.fullmatch(pattern, result) is None:  # where `$` would let a newline at the end pass
        problems.append(Problem(f"{_shown(value)} does not match {pattern}", path))
        return _WRONG
    return result


def _explain(value: Any, kind: Any, error: str, path: FieldPath) -> str:
    base, metas = _unwrap(kind)
    if isinstance(base, EnumType) and isinstance(value, str):
        if value in later.VALUES.get(_names(path), frozenset()):
            return f"'{value}' is not honoured yet by this release"
        known = [str(member.value) for member in base]  # type: ignore[var-annotated]
        return f"'{value}' is none of {', '.join(known)}"
    pattern = next((meta.pattern for meta in metas if meta.pattern is not None), None)
    if pattern is not None and isinstance(value, str) and "matching" in error:
        return f"'{value}' does not match {pattern}"
    wanted = re.split(", got| - at ", error, maxsplit=1)[0].replace("`", "")
    wanted = wanted[:1].lower() + wanted[1:]
    return f"{wanted}, got {_shown(value)}"


def _shown(value: Any) -> str:
    word = _WORDS.get(type(value).__name__)
    if word:
        return word
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


def _names(path: FieldPath) -> tuple[str, ...]:
    return tuple(step for step in path if isinstance(step, str))


def _unwrap(kind: Any) -> tuple[Any, tuple[Meta, ...]]:
    """Take `| None` and Annotated off a type."""
    metas: tuple[Meta, ...] = ()
    while True:
        arguments = get_args(kind)
        if get_origin(kind) is Annotated:
            kind, metas = arguments[0], (*metas, *(a for a in arguments[1:] if isinstance(a, Meta)))
        elif arguments and type(None) in arguments:
            (kind,) = (a for a in arguments if a is not type(None))
        else:
            return kind, metas
