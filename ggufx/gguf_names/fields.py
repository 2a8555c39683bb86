"""The metadata half of the gguf package's writer: ``kv_data``, and the ``add_*`` calls that fill it."""

from __future__ import annotations

import logging
import string
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any

from ..formats.value_types import ValueType
from ..write.keys import Declared, check_key, encode_for
from ..write.serialize import Encoded, Layout, value_type
from .keys import KEYS, parameter

__all__ = ["GGUFFields", "GGUFValue"]

logger = logging.getLogger(__name__)


@dataclass
class GGUFValue:
    """A metadata value, its type, and its elements' type where it is an array and they are to have another."""

    value: Any
    type: int
    sub_type: int | None = None


class GGUFFields:
    """Metadata under the calls of the gguf package's writer.

    Attributes
    ----------
    arch : str
        Written as ``general.architecture`` and put into the keys of the ``add_*`` calls.
    endianess : int
        0 (little) or 1 (big).
    kv_data : list of dict
        The keys of each shard with their :class:`GGUFValue`, as they will be written.
    """

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., None]: ...

    def __init__(self, arch: str, endianess: int) -> None:
        self.arch = arch
        self.endianess = endianess
        self.kv_data: list[dict[str, GGUFValue]] = [{}]

    def add_key_value(self, key: str, val: Any, vtype: int, sub_type: int | None = None) -> None:
        """Set a key to a value of the given type; `sub_type` is the elements' type of an array.

        Raises
        ------
        TypeError, ValueError
            If the value isn't of the type; the message names the key.
        """
        check_key(key)
        self._encoded(key, GGUFValue(val, vtype, sub_type))  # what can't be written fails here, not at the end
        if any(key in fields for fields in self.kv_data):
            logger.warning("%r is there already and gets a new value", key)
        self.kv_data[0][key] = GGUFValue(val, value_type(int(vtype)), sub_type)

    def add_string(self, key: str, val: str | bytes) -> None:
        """Set a string; empty ones are left out, as gguf does."""
        if val:
            self.add_key_value(key, val, ValueType.STRING)

    def add_array(self, key: str, val: Sequence[Any]) -> None:
        """Set an array; empty ones are left out, as gguf does."""
        if len(val):
            self.add_key_value(key, val, ValueType.ARRAY)

    def add_architecture(self) -> None:
        """Set ``general.architecture``."""
        self.add_string("general.architecture", self.arch)

    def add_dense_features_dims(self, dense: str, in_f: int, out_f: int) -> None:
        """Set the sizes of a dense module behind an embedding model."""
        self.add_key_value(f"{self.arch}.{dense}_feat_in", in_f, ValueType.UINT32)
        self.add_key_value(f"{self.arch}.{dense}_feat_out", out_f, ValueType.UINT32)

    def add_chat_template(self, value: str | Sequence[Mapping[str, str]]) -> None:
        """Set the chat template, or several by name with the one called ``default`` as the template."""
        if not isinstance(value, str):
            letters = string.ascii_letters + string.digits
            named = {
                "".join(c if c in letters else "_" for c in choice.get("name", "")): choice.get("template")
                for choice in value
            }
            templates = {name: text for name, text in named.items() if name and text is not None}
            default = templates.pop("default", None)
            for name, text in templates.items():
                self.add_string(f"tokenizer.chat_template.{name}", text)
            if templates:
                self.add_array("tokenizer.chat_templates", list(templates))
            if default is None:
                return
            value = default
        self.add_string("tokenizer.chat_template", value)

    # --- to bytes ----------------------------------------------------------------------------------------------------

    @property
    def _layout(self) -> Layout:
        return Layout("big" if self.endianess else "little")

    def _encoded(self, key: str, field: GGUFValue) -> Encoded:
        """A value's type and bytes; anything with the attributes of a :class:`GGUFValue` will do, gguf's own too."""
        kind, val = value_type(int(field.type)), field.value
        if kind is ValueType.ARRAY:
            item = None if field.sub_type is None else value_type(int(field.sub_type))
            if item is None and isinstance(val, bytes):
                val, item = list(val), ValueType.UINT8
            encoded = encode_for(self._layout, key, val, item)
            if encoded.type is not ValueType.ARRAY:
                raise TypeError(f"metadata key {key!r}: a sequence was expected, not {val!r}")
            return encoded
        if kind is ValueType.BOOL and not hasattr(val, "__len__"):
            val = bool(val)
        elif kind not in (ValueType.STRING, ValueType.FLOAT32, ValueType.FLOAT64) and isinstance(val, bool):
            val = int(val)
        return encode_for(self._layout, key, val, kind, Declared(kind))

    # Programs that count a header's bytes beforehand call these two of gguf's, underscore or not.

    def _pack(self, fmt: str, value: Any, skip_pack_prefix: bool = False) -> bytes:
        return struct.pack(fmt if skip_pack_prefix else self._layout.order + fmt, value)

    def _pack_val(self, val: Any, vtype: int, add_vtype: bool, sub_type: int | None = None) -> bytes:
        encoded = self._encoded("", GGUFValue(val, vtype, sub_type))
        return (self._layout.u32(encoded.type) if add_vtype else b"") + encoded.payload


def _adder(call: str, kind: str, key: str) -> Callable[..., None]:
    """An ``add_*`` method that sets one key."""
    names = kind.split("|")
    ids = ["source_id"] if "{id}" in key else []
    signature = Signature([Parameter(n, Parameter.POSITIONAL_OR_KEYWORD) for n in ("self", *ids, parameter(call))])

    def add(self: GGUFFields, *args: Any, **kwargs: Any) -> None:
        _, *number, value = signature.bind(self, *args, **kwargs).arguments.values()
        value = getattr(value, "value", value)  # gguf's enums stand for their values
        full = key.format(arch=self.arch, id=number[0] if number else None)
        if "array" in names and (len(names) == 1 or not isinstance(value, int)):
            self.add_array(full, value)
        elif names[0] == "string":
            self.add_string(full, value)
        else:
            self.add_key_value(full, value, value_type(names[0]))

    add.__name__ = f"add_{call}"
    add.__doc__ = f"Set ``{key}`` ({kind.replace('|', ' or ')})."
    add.__signature__ = signature  # type: ignore[attr-defined]
    return add


def _plain_adder(kind: ValueType) -> Callable[[GGUFFields, str, Any], None]:
    """``add_uint32`` and its like, which take the key."""

    def add(self: GGUFFields, key: str, val: Any) -> None:
        self.add_key_value(key, val, kind)

    add.__name__ = f"add_{kind.name.lower()}"
    add.__doc__ = f"Set a key to a {kind.name.lower()} value."
    return add


for _kind in ValueType:
    if _kind not in (ValueType.STRING, ValueType.ARRAY):
        setattr(GGUFFields, f"add_{_kind.name.lower()}", _plain_adder(_kind))
for _spec, _calls in KEYS.items():
    for _name, _key in _calls.items():
        setattr(GGUFFields, f"add_{_name}", _adder(_name, _spec, _key))
