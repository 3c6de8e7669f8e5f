"""config.pbtxt is read as protobuf reads it, and a mistake in it is named with its place."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import text_format
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal_api.protocol import POOL
from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.core.errors import Code, ServingError
from shoal_dataplane.repository.config_pbtxt import MAX_CONFIG_BYTES, parse_config, read_config
from shoal_dataplane.repository.schema import descriptor_of
from tests.unit.repository.fakes import refusal
from tests.unit.repository.messages import configs


def message_of(text: str) -> str:
    with pytest.raises(ServingError) as caught:
        parse_config(text, "m/config.pbtxt")
    assert caught.value.code is Code.INVALID_ARGUMENT
    return caught.value.message


@settings(max_examples=60, deadline=None)
@given(configs(), st.booleans(), st.booleans(), st.booleans())
def test_what_protobuf_prints_is_read_back(config: mc.ModelConfig, short: bool, pointed: bool, one_line: bool) -> None:
    text = text_format.MessageToString(
        config,
        use_short_repeated_primitives=short,
        pointy_brackets=pointed,
        as_one_line=one_line,
        descriptor_pool=POOL,
    )
    assert parse_config(text) == config


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="nameinput_dims:{}[]<>,;\"'\\#-.0129eExuUf \n\t\u00e9\0", max_size=60))
def test_any_text_is_read_or_refused_with_a_place(text: str) -> None:
    error = refusal(lambda: parse_config(text, "m/config.pbtxt"))
    assert error is None or error.message.startswith("failed to read text proto from m/config.pbtxt:")


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=20))
def test_strings_survive_protobufs_escapes(value: str) -> None:
    for utf8 in (True, False):
        text = text_format.MessageToString(mc.ModelConfig(name=value), as_utf8=utf8, descriptor_pool=POOL)
        assert parse_config(text).name == value


def test_the_forms_of_the_text_format() -> None:
    config = parse_config(
        """
        # a comment
        name: 'ab' "cd"   # strings in a row are one
        max_batch_size: 0x10
        input [ { name: "a" data_type: TYPE_FP32 dims: [ 1, -1 ] reshape: { shape: [ ] } },
                { name: "\\x62\\103\\u00e9" data_type: 11, dims: 3; dims: 4 } ]
        instance_group < count: 2; kind: KIND_CPU passive: t >
        parameters { key: "k" value: { string_value: "v" } }
        parameters: [ { key: "l" value { string_value: "w" } } ]
        model_metrics { metric_control { histogram_options { buckets: [ 1, 2.5e3, .5f, -inf ] } } }
        """
    )
    assert (config.name, config.max_batch_size) == ("abcd", 16)
    assert list(config.input[0].dims) == [1, -1]
    assert config.input[0].HasField("reshape")
    assert (config.input[1].name, list(config.input[1].dims)) == ("bCé", [3, 4])
    assert config.input[1].data_type == mc.TYPE_FP32
    assert config.instance_group[0].passive
    assert {key: value.string_value for key, value in config.parameters.items()} == {"k": "v", "l": "w"}
    assert list(config.model_metrics.metric_control[0].histogram_options.buckets) == [1, 2500, 0.5, float("-inf")]


def test_an_unknown_field_is_named_with_its_place_and_what_was_meant() -> None:
    assert message_of('name: "x"\n\n  max_batchsize: 8') == (
        "failed to read text proto from m/config.pbtxt:3:3: ModelConfig has no field 'max_batchsize'; did you mean 'max_batch_size'?"
    )


def test_an_unknown_field_inside_a_message_is_named_by_its_path() -> None:
    text = 'input [ { name: "a" }, { reshape: { shpae: [ 1 ] } } ]'
    assert (
        "1:37: field 'input[1].reshape' (ModelTensorReshape) has no field 'shpae'; did you mean 'shape'?"
        in message_of(text)
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('max_batch_size: "8"', "1:17: expected a whole number (int32) in field 'max_batch_size', found '\"8\"'"),
        ("max_batch_size: 1.5", "1:17: field 'max_batch_size': expected a whole number (int32), found '1.5'"),
        ("max_batch_size: 3000000000", "1:17: field 'max_batch_size': 3000000000 is out of range for int32"),
        (
            "dynamic_batching { priority_levels: -1 }",
            "1:37: field 'dynamic_batching.priority_levels': -1 is out of range for uint64",
        ),
        ("name: 3", "1:7: expected a string in quotes in field 'name', found '3'"),
        (
            "instance_group { passive: yes }",
            "1:27: field 'instance_group[0].passive': expected true or false, found 'yes'",
        ),
        (
            "dynamic_batching: 3",
            "expected '{' (the field is a ModelDynamicBatching) in field 'dynamic_batching', found '3'",
        ),
        ('name: [ "x" ]', "field 'name' takes one value, not a list"),
        ('name "x"', "expected ':' in field 'name', found '\"x\"'"),
        ("model_metrics { metric_control { histogram_options { buckets: x } } }", "expected a number, found 'x'"),
        ('name: "\\xff"', "field 'name': the string is not UTF-8"),
        ('name: "\\ud800"', "U+D800 in a string is no character"),
        ('name: "\\q"', "unknown escape '\\q' in a string"),
        ('name: "abc', "1:7: a string without its closing quote"),
        ("name: @", "1:7: unexpected character '@'"),
        ('input { name: "x"', "expected a field name or '}' in field 'input[0]', found the end of the file"),
        ("input [ { dims: [ 1 2 ] } ]", "1:21: expected ',' or ']' in field 'input[0].dims', found '2'"),
    ],
)
def test_a_wrong_value_is_named_with_its_place_field_and_expectation(text: str, problem: str) -> None:
    assert problem in message_of(text)


def test_a_mistyped_enum_names_what_was_meant() -> None:
    text = message_of('input { name: "a"\ndata_type: TYPE_FP23 }')
    assert "2:12: field 'input[0].data_type': 'TYPE_FP23' is not a value of DataType; did you mean 'TYPE_FP32'" in text
    assert "'9' is not a value of Kind; expected one of KIND_AUTO, KIND_GPU" in message_of("instance_group { kind: 9 }")


def test_a_singular_field_given_twice_is_refused_even_with_its_default() -> None:
    assert "1:19: field 'max_batch_size' is given more than once" in message_of("max_batch_size: 0 max_batch_size: 0")
    assert "field 'dynamic_batching' is given more than once" in message_of("dynamic_batching { } dynamic_batching { }")


def test_two_schedulers_are_refused() -> None:
    text = message_of("dynamic_batching { }\nsequence_batching { }")
    assert "2:1: field 'sequence_batching' is given beside 'dynamic_batching': only one of them may be set" in text


def test_a_file_that_cannot_be_a_configuration_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "config.pbtxt"
    with pytest.raises(ServingError, match=r"failed to open text file for read .*config\.pbtxt: No such file"):
        read_config(path)
    path.write_bytes(b'name: "a"\nplatform: "\xff"')
    with pytest.raises(ServingError, match=r"config\.pbtxt:2: the file is not UTF-8 text"):
        read_config(path)
    path.write_bytes(b" " * (MAX_CONFIG_BYTES + 1))
    with pytest.raises(ServingError, match="larger than 16 MiB"):
        read_config(path)
    path.write_text('\ufeffname: "a"')
    assert read_config(path).name == "a"


def test_every_field_of_the_schema_can_be_given() -> None:
    seen: set[str] = set()

    def fill(message: Message, depth: int) -> None:
        for field in descriptor_of(message).fields:
            seen.add(field.full_name)
            if field.message_type is not None and not field.message_type.GetOptions().map_entry:
                value = getattr(message, field.name)
                fill(value.add() if field.is_repeated else value, depth + 1)

    config = mc.ModelConfig()
    fill(config, 0)
    assert parse_config(text_format.MessageToString(config, descriptor_pool=POOL)) == config
    assert len(seen) > 120
