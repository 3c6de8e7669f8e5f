"""Names in a configuration find their positions in a PyTorch model."""

from __future__ import annotations

import json

import pytest

from shoal_dataplane.backends.pytorch.errors import error_text
from shoal_dataplane.backends.pytorch.names import leaf_paths, positions, single_key
from shoal_dataplane.core.errors import ServingError


@pytest.mark.parametrize(
    ("names", "known", "expected"),
    [
        (["mask", "ids"], {"ids": 0, "mask": 1}, (1, 0)),
        (["IN__1", "IN__0"], {"ids": 0, "mask": 1}, (1, 0)),
        (["a__b__1", "a__0"], {}, (0, 1)),  # __b: no index, so the order of the configuration
        (["x", "IN__0"], {"ids": 0, "mask": 1}, (0, 1)),
        (["x", "y"], {}, (0, 1)),
    ],
)
def test_conventions_are_tried_in_triton_s_order(
    names: list[str], known: dict[str, int], expected: tuple[int, ...]
) -> None:
    assert positions("m", "input", names, known, 2) == expected


def test_positions_that_do_not_exist_or_are_taken_twice_are_refused() -> None:
    with pytest.raises(ServingError, match="expects input 'IN__2' at index 2, model provides 2 inputs"):
        positions("m", "input", ["IN__2"], {}, 2)
    with pytest.raises(ServingError, match="outputs 'A__1' and 'B__1' both mean the model's output at index 1"):
        positions("m", "output", ["A__1", "B__1"], {}, None)


def _node(kind: str | None, context: str | None, *children: object) -> dict[str, object]:
    return {"type": kind, "context": context, "children_spec": list(children)}


def test_paths_of_leaves_follow_tuples_and_dictionaries() -> None:
    leaf = _node(None, None)
    arguments = _node("builtins.tuple", "null", leaf, _node("builtins.dict", '["b", "a"]', leaf, leaf))
    keywords = _node("builtins.dict", '["mask"]', _node("builtins.list", "null", leaf, leaf))
    spec = json.dumps([1, _node("builtins.tuple", "null", arguments, keywords)])
    assert leaf_paths(spec, ("ARGS", "KWARGS")) == [
        "ARGS[0]",
        "ARGS[1][b]",
        "ARGS[1][a]",
        "KWARGS[mask][0]",
        "KWARGS[mask][1]",
    ]
    assert leaf_paths(json.dumps([1, leaf]), ("RESULT",)) == ["RESULT"]


@pytest.mark.parametrize(
    ("path", "key"),
    [("RESULT[logits]", "logits"), ("RESULT[0]", None), ("RESULT", None), ("RESULT[a][b]", None), ("OTHER[a]", None)],
)
def test_a_single_key_is_a_name(path: str, key: str | None) -> None:
    assert single_key(path, "RESULT") == key


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("two\n  lines", "two lines"),
        (
            "bad size\nException raised from meta at /build/x.cpp:194 (most recent call first):\nframe #0: c10",
            "bad size",
        ),
        (
            "The following operation failed in the TorchScript interpreter.\nTraceback of TorchScript, serialized code (most recent "
            'call last):\n  File "code/__torch__.py", line 13, in forward\n    x\n    ~ <--- HERE\nRuntimeError: bad size\n',
            "bad size",
        ),
        (
            "The following operation failed in the TorchScript interpreter.\nTraceback of TorchScript (most recent call last):\n"
            "builtins.ValueError: not positive\n",
            "not positive",
        ),
        ("", "RuntimeError"),
        ("x" * 1000, "x" * 600 + "..."),
    ],
)
def test_messages_of_torch_are_cut_to_the_point(text: str, expected: str) -> None:
    assert error_text(RuntimeError(text)) == expected
