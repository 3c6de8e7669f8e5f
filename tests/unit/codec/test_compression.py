"""Compressed bodies: what comes out is what went in, and a bomb stays small."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_dataplane.codec.compression import choose_encoding, compress, decompress
from shoal_dataplane.core.errors import Code, ServingError

LIMIT = 1 << 20


@given(st.lists(st.binary(max_size=200), max_size=5), st.sampled_from(["gzip", "deflate"]))
def test_bodies_survive(parts: list[bytes], encoding: str) -> None:
    assert decompress(encoding, compress(encoding, parts), LIMIT) == b"".join(parts)


def test_deflate_is_taken_with_and_without_zlibs_header() -> None:
    data = b"hello " * 100
    raw = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    assert decompress("deflate", raw.compress(data) + raw.flush(), LIMIT) == data
    assert decompress("deflate", zlib.compress(data), LIMIT) == data


def test_gzip_members_are_joined() -> None:
    assert (
        decompress("gzip", gzip.compress(b"ab" * 50_000) + gzip.compress(b"") + gzip.compress(b"cd"), LIMIT)
        == b"ab" * 50_000 + b"cd"
    )


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_bomb_is_refused_without_being_unpacked(encoding: str) -> None:
    bomb = compress(encoding, [bytes(1 << 20)] * 256)
    assert len(bomb) < 3 << 20
    tracemalloc.start()
    try:
        with pytest.raises(
            ServingError,
            match=r"Decompressed data size exceeds the maximum allowed value of 1048576 bytes\. Use --http-max-input-size",
        ):
            decompress(encoding, bomb, LIMIT)
        assert tracemalloc.get_traced_memory()[1] < 8 * LIMIT
    finally:
        tracemalloc.stop()


def test_the_limit_itself_is_allowed() -> None:
    assert len(decompress("gzip", gzip.compress(bytes(LIMIT)), LIMIT)) == LIMIT
    with pytest.raises(ServingError, match="exceeds"):
        decompress("gzip", gzip.compress(bytes(LIMIT + 1)), LIMIT)


@pytest.mark.parametrize(
    ("encoding", "data", "said"),
    [
        ("gzip", b"{}", "failed to decompress the request body as gzip"),
        ("gzip", b"", "it is truncated"),
        ("gzip", gzip.compress(b"hello")[:-1], "it is truncated"),
        ("gzip", gzip.compress(b"hello") + b"junk", "failed to decompress the request body as gzip"),
        ("deflate", zlib.compress(b"hello") + b"junk", "4 bytes follow its end"),
        ("deflate", zlib.compress(b"hello")[:-1], "it is truncated"),
        ("deflate", b"\xff\xff", "failed to decompress the request body as deflate"),
        ("gzip", gzip.compress(b"") * 5000, "bytes follow its end"),
    ],
)
def test_a_corrupt_body_is_refused(encoding: str, data: bytes, said: str) -> None:
    with pytest.raises(ServingError, match=said) as caught:
        decompress(encoding, data, LIMIT)
    assert caught.value.code is Code.INVALID_ARGUMENT


def test_another_encoding_is_not_supported() -> None:
    with pytest.raises(ServingError, match="Unsupported compression type 'br'") as caught:
        decompress("br", b"x", LIMIT)
    assert caught.value.code is Code.UNIMPLEMENTED


@given(st.sampled_from(["gzip", "deflate"]), st.binary(max_size=100))
def test_any_bytes_give_bytes_or_a_serving_error(encoding: str, data: bytes) -> None:
    code = Code.OK
    try:
        decompress(encoding, data, 1000)
    except ServingError as error:
        code = error.code
    assert code in (Code.OK, Code.INVALID_ARGUMENT)


@pytest.mark.parametrize(
    ("header", "chosen"),
    [
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("gzip, deflate", "gzip"),
        ("deflate, gzip", "deflate"),
        ("gzip;q=0, deflate", "deflate"),
        ("gzip;q=0.5, deflate;q=0.8", "deflate"),
        ("identity, gzip", "identity"),
        ("GZIP ; Q=0.5", "gzip"),
        ("br", "identity"),
        ("*", "identity"),
        ("", "identity"),
        ("gzip;q=high", "identity"),
        (",;,=,", "identity"),
    ],
)
def test_the_response_takes_the_best_encoding_that_is_accepted(header: str, chosen: str) -> None:
    assert choose_encoding(header) == chosen
