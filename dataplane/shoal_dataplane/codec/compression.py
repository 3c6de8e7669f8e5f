"""gzip and deflate bodies, bounded in both directions (triton.md I3)."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Final

from shoal_dataplane.core.errors import ServingError, invalid, unimplemented
from shoal_dataplane.core.tensors import Buffer

ENCODINGS: Final = ("gzip", "deflate")

_GZIP: Final = 16 + zlib.MAX_WBITS
_WINDOW: Final = 1 << 16
_MAX_MEMBERS: Final = 4096
_LEVEL: Final = 1  # of 9: a tensor compresses little, and the callers wait for it


def decompress(encoding: str, data: Buffer, limit: int) -> bytes:
    """Decompress a whole body of at most `limit` bytes; never holds more than that, however much the body would expand to.

    "deflate" is taken in zlib's format (RFC 9110) and raw (what some clients send). Raises ServingError: UNIMPLEMENTED for another
    encoding, INVALID_ARGUMENT for a corrupt or truncated body and for one that is too large.
    """
    view = memoryview(data)
    window_bits = _window_bits(encoding, view)
    stream = zlib.decompressobj(window_bits)
    parts: list[bytes] = []
    size = at = 0
    members = 1
    try:
        while at < len(view):
            if stream.eof:  # another gzip member follows
                members += 1
                if encoding != "gzip" or members > _MAX_MEMBERS:
                    raise _corrupt(encoding, f"{len(view) - at} bytes follow its end")
                stream = zlib.decompressobj(window_bits)
            piece = view[at : at + _WINDOW]
            part = stream.decompress(piece, limit - size + 1)
            size += len(part)
            if size > limit:
                raise _too_large(limit)
            parts.append(part)
            at += len(piece) - len(stream.unused_data) - len(stream.unconsumed_tail)
    except zlib.error as error:
        raise _corrupt(encoding, str(error)) from None
    if not stream.eof:
        raise _corrupt(encoding, "it is truncated")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _window_bits(encoding: str, view: memoryview) -> int:
    if encoding == "gzip":
        return _GZIP
    if encoding == "deflate":
        zlib_header = len(view) >= 2 and view[0] & 0x0F == 8 and (view[0] << 8 | view[1]) % 31 == 0
        return zlib.MAX_WBITS if zlib_header else -zlib.MAX_WBITS
    raise unimplemented(f"Unsupported compression type '{encoding[:40]}': expected gzip, deflate or identity")


def _corrupt(encoding: str, detail: str) -> ServingError:
    return invalid(f"failed to decompress the request body as {encoding}: {detail}")


def _too_large(limit: int) -> ServingError:
    return invalid(
        f"Decompressed data size exceeds the maximum allowed value of {limit} bytes. Use --http-max-input-size to increase the limit."
    )


def compress(encoding: str, parts: Iterable[Buffer]) -> bytes:
    """Compress a body given in parts, as "gzip" or "deflate" (zlib's format)."""
    stream = zlib.compressobj(_LEVEL, wbits=_GZIP if encoding == "gzip" else zlib.MAX_WBITS)
    out = [stream.compress(part) for part in parts]
    out.append(stream.flush())
    return b"".join(out)


def choose_encoding(accepted: str) -> str:
    """Choose "gzip", "deflate" or "identity" for an Accept-Encoding header: the one of highest weight, the first of equals.

    As in Triton, "*" chooses nothing and a malformed weight takes its encoding out.
    """
    best, best_weight = "identity", 0.0
    for item in accepted.split(","):
        name, *options = (part.strip().lower() for part in item.split(";"))
        weight = 1.0
        for option in options:
            if option.startswith("q="):
                try:
                    weight = float(option[2:])
                except ValueError:
                    weight = 0.0
        if name in ("gzip", "deflate", "identity") and weight > best_weight:
            best, best_weight = name, weight
    return best
