from collections.abc import Buffer

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
