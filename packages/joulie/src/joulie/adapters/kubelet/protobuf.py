"""Reads the fields of a protobuf message that hold text or messages, by number.

Enough for the few messages of PodResources, without generated code. Source: protobuf.dev, encoding.
"""

from __future__ import annotations

from collections.abc import Iterator

_VARINT, _I64, _LEN, _I32 = 0, 1, 2, 5
_FIXED_BYTES = {_I64: 8, _I32: 4}
_MAX_SHIFT = 63


class ProtobufError(ValueError):
    """Bytes that are not a protobuf message."""


def chunks(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Number and content of each length-delimited field, in order; fields of other types are passed over.

    Raises:
        ProtobufError: the message is cut off or malformed.
    """
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        kind = tag & 7
        if kind == _VARINT:
            _, place = _varint(message, place)
            continue
        if kind == _LEN:
            length, place = _varint(message, place)
        elif kind in _FIXED_BYTES:
            length = _FIXED_BYTES[kind]
        else:
            raise ProtobufError(f"invalid wire type {kind} at byte {place}")
        end = place + length
        if end > len(message):
            raise ProtobufError(f"field {tag >> 3} ends at byte {end}, the message at {len(message)}")
        if kind == _LEN:
            yield tag >> 3, message[place:end]
        place = end


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """A variable-length integer, and the place after it."""
    value = shift = 0
    while place < len(message) and shift <= _MAX_SHIFT:
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
    raise ProtobufError(f"the number that ends at byte {place} is cut off or too long")
