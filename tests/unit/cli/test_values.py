"""`--input NAME=VALUE`: what a person types becomes the tensor that the model takes, or an error that says what was expected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from shoal_cli.client.values import InputError, build, split


def metadata(datatype: str, shape: list[int], name: str = "x") -> dict[str, Any]:
    return {"name": "m", "inputs": [{"name": name, "datatype": datatype, "shape": shape}]}


def tensor(value: str, datatype: str, shape: list[int]) -> np.ndarray[Any, Any]:
    (found,) = build([("x", value)], metadata(datatype, shape))
    assert (found.name, found.datatype) == ("x", datatype)
    array = found.array()
    assert array.shape == found.shape
    return array


@pytest.mark.parametrize(
    ("value", "datatype", "shape", "expected"),
    [
        ("1.5", "FP32", [-1, 1], [[1.5]]),
        ("[1,2]", "INT64", [-1, 2], [[1, 2]]),
        ("1, 2", "INT64", [-1, 2], [[1, 2]]),
        ("[[1,2],[3,4]]", "FP32", [-1, 2], [[1, 2], [3, 4]]),
        ("[1,2,3]", "INT32", [3], [1, 2, 3]),
        ("7", "UINT8", [], 7),
        ("true", "BOOL", [-1, 1], [[True]]),
        ("[0,1]", "BOOL", [2], [False, True]),
        ("1", "FP16", [1], [1.0]),
        ("1.5", "BF16", [1], [1.5]),
        ("18446744073709551615", "UINT64", [1], [2**64 - 1]),
        ("3.0", "INT32", [1], [3]),
    ],
)
def test_numbers_and_lists(value: str, datatype: str, shape: list[int], expected: Any) -> None:
    np.testing.assert_array_equal(tensor(value, datatype, shape), np.array(expected))


@pytest.mark.parametrize(
    ("value", "shape", "expected"),
    [
        ("hello", [-1, 1], [[b"hello"]]),
        ("", [1], [b""]),
        ("a=b", [1], [b"a=b"]),
        ("12", [1], [b"12"]),
        ("[not json", [1], [b"[not json"]),
        ('["a","ü"]', [2], [b"a", "ü".encode()]),
    ],
)
def test_text(value: str, shape: list[int], expected: Any) -> None:
    assert tensor(value, "BYTES", shape).tolist() == expected


def test_several_values_of_one_name_are_the_rows_of_a_batch() -> None:
    (found,) = build([("x", "a"), ("x", "b")], metadata("BYTES", [-1, 1]))
    assert found.shape == (2, 1)
    assert found.array().tolist() == [[b"a"], [b"b"]]


def test_rows_that_differ_in_shape_cannot_share_a_batch() -> None:
    with pytest.raises(InputError, match=r"rows of different shapes cannot share a batch: \[1, 2\] and \[1, 3\]"):
        build([("x", "[1,2]"), ("x", "[1,2,3]")], metadata("INT64", [-1, -1]))


@pytest.mark.parametrize(
    ("value", "datatype", "shape", "message"),
    [
        ("abc", "FP32", [1], "input 'x': 'abc' is no FP32 value: expected a number or a JSON list"),
        ("300", "UINT8", [1], "input 'x': the values do not fit UINT8: they are int64 from 300 to 300"),
        ("-1", "UINT64", [1], "input 'x': the values do not fit UINT64: they are int64 from -1 to -1"),
        ("1.5", "INT32", [1], "input 'x': the values do not fit INT32: they are float64 from 1.5 to 1.5"),
        ("2", "BOOL", [1], "input 'x': the values do not fit BOOL: they are int64 from 2 to 2"),
        ('"a"', "FP32", [1], "input 'x': expected FP32 values, got str32"),
        ("[[1],[2,3]]", "FP32", [-1, -1], "input 'x': the rows of the list have different lengths"),
        ("[1,2,3]", "FP32", [-1, 2], "input 'x': expected shape [-1, 2], got [1, 3]"),
        ("[[[1]]]", "FP32", [-1, 1], "input 'x': expected shape [-1, 1], got [1, 1, 1]"),
        ("@/nowhere.npy", "FP32", [1], "input 'x': no such file: /nowhere.npy"),
    ],
)
def test_a_value_that_does_not_fit_is_named(value: str, datatype: str, shape: list[int], message: str) -> None:
    with pytest.raises(InputError) as raised:
        build([("x", value)], metadata(datatype, shape))
    assert str(raised.value) == message


def test_an_input_that_the_model_lacks_is_named_with_those_it_has() -> None:
    with pytest.raises(InputError, match=r"model 'm' has no input 'y'; it has x \(FP32 \[-1, 2\]\)"):
        build([("y", "1")], metadata("FP32", [-1, 2]))


@pytest.mark.parametrize("text", ["x", "=1", ""])
def test_an_input_without_a_name_or_value_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="expected NAME=VALUE"):
        split(text)


def test_a_numpy_file_is_read_without_its_objects(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(4, dtype=np.int32).reshape(2, 2))
    np.testing.assert_array_equal(tensor(f"@{tmp_path}/a.npy", "FP32", [-1, 2]), [[0, 1], [2, 3]])
    np.save(tmp_path / "s.npy", np.array(["a", "bc"]))
    assert tensor(f"@{tmp_path}/s.npy", "BYTES", [2]).tolist() == [b"a", b"bc"]
    np.save(tmp_path / "o.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match=r"is no \.npy file without objects"):
        tensor(f"@{tmp_path}/o.npy", "FP32", [1])


def test_a_text_file_is_one_string_for_bytes_and_numbers_otherwise(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("two\nlines\n")
    assert tensor(f"@{tmp_path}/t.txt", "BYTES", [-1, 1]).tolist() == [[b"two\nlines"]]
    (tmp_path / "n.txt").write_text("[1, 2]\n")
    np.testing.assert_array_equal(tensor(f"@{tmp_path}/n.txt", "INT64", [2]), [1, 2])


def picture(folder: Path) -> Path:
    """Left half red, right half blue, twice as wide as high."""
    image = Image.new("RGB", (8, 4), (255, 0, 0))
    image.paste((0, 0, 255), (4, 0, 8, 4))
    image.save(folder / "p.png")
    return folder / "p.png"


def test_a_picture_is_cropped_to_the_middle_and_scaled(tmp_path: Path) -> None:
    pixels = tensor(f"@{picture(tmp_path)}", "UINT8", [-1, 4, 4, 3])
    assert pixels.shape == (1, 4, 4, 3)
    assert pixels[0, 0, 0].tolist() == [255, 0, 0]
    assert pixels[0, 0, 3].tolist() == [0, 0, 255]


def test_a_picture_comes_as_channels_first_and_floats_where_the_input_says_so(tmp_path: Path) -> None:
    pixels = tensor(f"@{picture(tmp_path)}", "FP32", [-1, 3, 4, 4])
    assert pixels.shape == (1, 3, 4, 4)
    assert pixels[0, :, 0, 0].tolist() == [1.0, 0.0, 0.0]


def test_a_picture_keeps_its_size_where_the_input_takes_any(tmp_path: Path) -> None:
    assert tensor(f"@{picture(tmp_path)}", "UINT8", [-1, -1, -1, 3]).shape == (1, 4, 8, 3)


def test_a_picture_for_an_input_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has shape \[-1, 4\], expected \[height, width, 3\] or \[3, height, width\]"):
        tensor(f"@{picture(tmp_path)}", "FP32", [-1, 4])


def test_a_file_that_is_no_picture_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p.png").write_bytes(b"no picture")
    with pytest.raises(InputError, match="cannot be read as a picture"):
        tensor(f"@{tmp_path}/p.png", "UINT8", [-1, 4, 4, 3])


def test_a_picture_for_bytes_travels_encoded(tmp_path: Path) -> None:
    path = picture(tmp_path)
    assert tensor(f"@{path}", "BYTES", [1]).tolist() == [path.read_bytes()]
