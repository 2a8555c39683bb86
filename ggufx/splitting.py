"""Public path of :mod:`ggufx.write.split`: cut files into shards, join them, swap their byte order."""

from .write.split import convert_endian, merge, split

__all__ = ["convert_endian", "merge", "split"]
