"""The thirteen types a GGUF metadata value can be declared as."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["NUMBER_CODES", "ValueType"]


class ValueType(IntEnum):
    """The declared type of a metadata value; ids and names are GGUF's."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


# numpy's codes for the types of fixed width; a bool is a byte.
NUMBER_CODES = {
    ValueType.UINT8: "u1",
    ValueType.INT8: "i1",
    ValueType.UINT16: "u2",
    ValueType.INT16: "i2",
    ValueType.UINT32: "u4",
    ValueType.INT32: "i4",
    ValueType.FLOAT32: "f4",
    ValueType.BOOL: "u1",
    ValueType.UINT64: "u8",
    ValueType.INT64: "i8",
    ValueType.FLOAT64: "f8",
}
