"""Tensor types by whatever people call them."""

import numpy as np
import pytest

import ggufx
from ggufx import QType


@pytest.mark.parametrize("kind", QType)
def test_every_spelling(kind):
    name = kind.name
    for spec in (kind, int(kind), np.int64(kind), name, name.lower(), name.replace("_", ""), name.replace("_", "-")):
        assert QType.parse(spec) is kind


@pytest.mark.parametrize(
    ("spec", "name"),
    [("fp16", "F16"), ("float32", "F32"), ("bfloat16", "BF16"), ("FP64", "F64"), ("int8", "I8"), (" q4_k ", "Q4_K")],
)
def test_names_of_number_types(spec, name):
    assert QType.parse(spec).name == name


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("Q4_K_M", "Q4_K_M is a mix of types.*one type, Q4_K for most"),
        ("iq3-m", "IQ3_M is a mix"),
        ("Q4_KX", "unknown tensor type 'Q4_KX'; did you mean 'Q4_K'"),
        ("", "unknown tensor type ''$"),
        (99, "type id 99 isn't one"),
        (-1, "type id -1 isn't one"),
        (4, "type id 4 isn't one"),
    ],
)
def test_what_is_no_type(spec, message):
    with pytest.raises(ValueError, match=message):
        QType.parse(spec)


@pytest.mark.parametrize("spec", [None, 1.0, [12], b"Q4_K"])
def test_what_is_no_name(spec):
    with pytest.raises(TypeError, match="a QType, its id or its name"):
        QType.parse(spec)


def test_one_mistake_has_one_error_everywhere():
    block, values = np.zeros(18, np.uint8), np.zeros(32, np.float32)
    calls = (
        lambda spec: ggufx.dequantize(block, spec),
        lambda spec: ggufx.quantize(values, spec),
        lambda spec: ggufx.nbytes(32, spec),
        lambda spec: ggufx.quant_error(values, spec),
    )
    for spec in (99, "Q4_K_M", "Q5_9"):
        messages = set()
        for call in calls:
            with pytest.raises(ValueError, match=str(spec)) as caught:
                call(spec)
            messages.add(str(caught.value))
        assert len(messages) == 1
