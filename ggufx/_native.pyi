from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Buffer: TypeAlias = object  # the real one needs Python 3.12

def paths() -> tuple[tuple[str, str | None], ...]: ...
def compiler() -> str: ...
def decodes(type: int) -> bool: ...
def decode(
    path: int,
    type: int,
    dtype: int,
    src: Buffer,
    src_start: int,
    out: Buffer,
    out_start: int,
    n: int,
    stream: bool,
) -> None: ...
def fp_default() -> int: ...
def fp_restore(control: int) -> None: ...
def walk_strings(
    buf: Buffer, pos: int, stop: int, count: int, width: int, big: bool, starts: npt.NDArray[np.uint64] | None = None
) -> tuple[int, int]: ...
def walk_arrays(
    buf: Buffer,
    pos: int,
    stop: int,
    count: int,
    width: int,
    big: bool,
    levels: int,
    most: int,
    starts: npt.NDArray[np.uint64] | None = None,
) -> tuple[int, int]: ...
def walk_tensors(
    buf: Buffer, pos: int, stop: int, count: int, width: int, big: bool, longest: int, rows: npt.NDArray[np.uint64]
) -> tuple[int, int, int]: ...
def encodes(type: int) -> bool: ...
def all_finite(path: int, x: Buffer) -> bool: ...
def encode(
    path: int,
    type: int,
    x: npt.NDArray[np.float32],
    qw: npt.NDArray[np.float32] | None,
    lattice: tuple[npt.NDArray[np.generic], ...] | None,
    check: bool,
    out: npt.NDArray[np.uint8],
) -> int: ...
def multiplies_codes(path: int) -> bool: ...
def codes_of(path: int, x: Buffer) -> bytearray: ...
def matmul(
    path: int,
    type: int,
    x: Buffer,
    codes: Buffer | None,
    rows: int,
    width: int,
    packed: Buffer,
    packed_start: int,
    out: Buffer,
    out_start: int,
    count: int,
    stride: int,
) -> None: ...
