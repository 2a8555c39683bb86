"""The thirteen types a GGUF metadata value can be declared as."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["ValueType"]


class ValueType(IntEnum):
    """The declared type of a metadata value; ids and names are GGUF's.

    Attributes
    ----------
    code : str
        numpy's code of a value (``"u4"``); a bool is a byte. Empty for strings and arrays, whose width isn't fixed.
    struct_code : str
        The :mod:`struct` module's code of the same.
    nbytes : int
        Bytes of a value; 0 for strings and arrays.
    """

    code: str
    struct_code: str
    nbytes: int

    # The defaults are for type checkers, which take the look-up ValueType(4) for this call.
    def __new__(cls, value: int, code: str = "", struct_code: str = "") -> ValueType:
        member = int.__new__(cls, value)
        member._value_ = value
        member.code = code
        member.struct_code = struct_code
        member.nbytes = int(code[1:] or 0)
        return member

    UINT8 = 0, "u1", "B"
    INT8 = 1, "i1", "b"
    UINT16 = 2, "u2", "H"
    INT16 = 3, "i2", "h"
    UINT32 = 4, "u4", "I"
    INT32 = 5, "i4", "i"
    FLOAT32 = 6, "f4", "f"
    BOOL = 7, "u1", "?"
    STRING = 8
    ARRAY = 9
    UINT64 = 10, "u8", "Q"
    INT64 = 11, "i8", "q"
    FLOAT64 = 12, "f8", "d"
