"""From the names in a configuration to the positions of a PyTorch model's inputs and outputs.

PyTorch models have positions and, some of them, names. Triton's conventions (its PyTorch backend's README), first match wins:
1. every configured name is one that the model knows: an argument of forward(), a path such as ARGS[0], KWARGS[mask], RESULT[logits];
2. every configured name ends in __<index>, such as INPUT__0 and OUTPUT__1;
3. the order of the configuration is the order of the model.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from shoal_dataplane.core.errors import invalid

logger = logging.getLogger(__name__)

_INDEXED: Final = re.compile(r"(?:(?!__).)*__(\d+)")  # after the first "__" nothing but the index, as in Triton


def positions(
    model: str, kind: str, names: Sequence[str], known: Mapping[str, int], count: int | None
) -> tuple[int, ...]:
    """Return the position of each configured name. `kind` is "input" or "output", `known` the model's own names, `count` how many
    positions there are (None: not known before the model has run).

    Raises ServingError(INVALID_ARGUMENT) for a position that does not exist or that two names take.
    """
    indices = [_INDEXED.fullmatch(name) for name in names]
    if all(name in known for name in names):
        found = tuple(known[name] for name in names)
    elif all(indices):
        found = tuple(int(match[1]) for match in indices if match)
    else:
        if known and count != 1:
            logger.warning(
                "model '%s': the %ss %s are neither names that the model knows (%s) nor of the form <name>__<index>; taking them in the "
                "order of the configuration",
                model,
                kind,
                ", ".join(names),
                ", ".join(known),
            )
        found = tuple(range(len(names)))
    for at, (name, position) in enumerate(zip(names, found, strict=True)):
        if count is not None and position >= count:
            raise invalid(
                f"unable to load model '{model}', configuration expects {kind} '{name}' at index {position}, model provides {count} "
                f"{kind}s"
            )
        if position in found[:at]:
            raise invalid(
                f"unable to load model '{model}', {kind}s '{names[found.index(position)]}' and '{name}' both mean the model's {kind} "
                f"at index {position}"
            )
    return found


def leaf_paths(spec: str, roots: Sequence[str]) -> list[str]:
    """Return the path of each tensor in a serialized torch pytree spec, in order.

    With one root the whole tree hangs on it: RESULT, RESULT[0], RESULT[logits]. With more, they name the children of the tree's root:
    ARGS[0], KWARGS[mask].
    """
    _, tree = json.loads(spec)
    if len(roots) == 1:
        return _walk(tree, roots[0])
    return [path for root, child in zip(roots, tree["children_spec"], strict=True) for path in _walk(child, root)]


def _walk(node: dict[str, Any], path: str) -> list[str]:
    if node["type"] is None:
        return [path]
    children = node["children_spec"]
    return [
        leaf
        for key, child in zip(_keys(node, len(children)), children, strict=True)
        for leaf in _walk(child, f"{path}[{key}]")
    ]


def _keys(node: dict[str, Any], count: int) -> Sequence[Any]:
    """The keys of a dictionary; the positions in anything else."""
    if node["type"] in ("builtins.dict", "collections.OrderedDict"):
        context = node["context"]
        keys = json.loads(context) if isinstance(context, str) else context
        if isinstance(keys, list) and len(keys) == count:
            return keys
    return range(count)


def single_key(path: str, root: str) -> str | None:
    """Return the key when `path` is `root` with one key after it ("logits" for RESULT[logits]), else None."""
    match = re.fullmatch(rf"{root}\[([^\[\]]+)\]", path)
    return match[1] if match and not match[1].isdigit() else None
