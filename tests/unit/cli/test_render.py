"""Outputs as people read them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from shoal_cli.client.render import as_json, classes, describe
from shoal_cli.client.tensors import ClientTensor


def tensor(values: Any, datatype: str = "FP32") -> ClientTensor:
    return ClientTensor.of("y", datatype, np.array(values, dtype=object if datatype == "BYTES" else None))


def test_a_small_tensor_is_shown_whole() -> None:
    assert describe(tensor([[1.5, 2.0]])) == "y  FP32 [1, 2]\n  [[1.5, 2. ]]"


def test_a_long_tensor_is_shortened_and_full_is_not() -> None:
    text = describe(tensor(np.arange(1000.0)))
    assert "..." in text
    assert len(text) < 300
    assert "..." not in describe(tensor(np.arange(1000.0)), full=True)


def test_strings_are_lines_and_what_is_not_text_is_escaped() -> None:
    text = describe(tensor(["hallo", b"zwei", b"\xff"], "BYTES"))
    assert text == "y  BYTES [3]\n  hallo\n  zwei\n  \\xff"


def test_many_or_long_strings_are_shortened() -> None:
    text = describe(tensor(["a" * 1000] + ["b"] * 99, "BYTES"))
    assert "... (1000 characters)" in text
    assert text.endswith("... and 92 more")


def test_classes_are_listed_with_labels_or_indices() -> None:
    text = classes(tensor([["0.91234:281:tabby: a cat", "0.05:7"]], "BYTES"))
    assert text == "y\n      0.9123  tabby: a cat (281)\n        0.05  class 7"


def test_classes_of_a_batch_have_a_block_for_each_row() -> None:
    text = classes(tensor([["1:0"], ["2:1"]], "BYTES"))
    assert text.splitlines() == ["y", "  row 0", "           1  class 0", "  row 1", "           2  class 1"]


def test_json_is_flat_and_holds_strings() -> None:
    text = json.dumps(as_json([tensor([[1, 2]], "INT64"), tensor(["a"], "BYTES")]))
    assert json.loads(text) == [
        {"name": "y", "datatype": "INT64", "shape": [1, 2], "data": [1, 2]},
        {"name": "y", "datatype": "BYTES", "shape": [1], "data": ["a"]},
    ]


def test_an_empty_tensor_is_shown() -> None:
    assert describe(tensor(np.zeros((0, 3)))) == "y  FP32 [0, 3]\n  []"
