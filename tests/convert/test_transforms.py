"""Every transform has the shape it announces, and gives back what it was given."""

from __future__ import annotations

import numpy as np
import pytest

from ggufx.convert import transforms as t
from ggufx.convert.hparams import Config

CONFIG = Config(
    {
        "architectures": ["Any"],
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size": 64,
        "qk_nope_head_dim": 3,
        "v_head_dim": 5,
        "pad_token_id": 1,
    },
    "config.json",
)
CASES = [
    (t.KEEP, (3, 5)),
    (t.PERMUTE_Q, (16, 6)),
    (t.PERMUTE_Q, (16,)),
    (t.PERMUTE_K, (16, 6)),
    (t.PLUS_ONE, (8,)),
    (t.TRANSPOSE, (2, 3, 5)),
    (t.SQUEEZE_MIDDLE, (4, 1, 3)),
    (t.GATE_UP_HALVES, (2, 6, 5)),
    (t.GATE_UP_TURNS, (2, 5, 6)),
    (t.GATE_UP_BIAS_TURNS, (2, 6)),
    (t.KV_B, (16, 7)),
]


@pytest.mark.parametrize(("transform", "shape"), CASES)
def test_there_and_back(transform: t.Transform, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(1).integers(-99, 99, shape).astype(np.float32)
    out = transform.apply(array, CONFIG)
    assert [a.shape for a in out] == transform.shapes(shape, CONFIG)
    assert len(out) == transform.outputs
    np.testing.assert_array_equal(transform.undo(out, CONFIG), array)


def test_heads_from_halves_to_pairs() -> None:
    rows = np.arange(8, dtype=np.float32)
    assert t.PERMUTE_K.apply(rows, CONFIG)[0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_rows_by_turns() -> None:
    gate, up = t.GATE_UP_TURNS.apply(np.array([[[1, 2, 3, 4]]], np.float32), CONFIG)
    assert (gate.ravel().tolist(), up.ravel().tolist()) == ([1, 3], [2, 4])


@pytest.mark.parametrize(
    ("transform", "shape"),
    [
        (t.PERMUTE_Q, (12, 6)),
        (t.PERMUTE_Q, ()),
        (t.TRANSPOSE, (3,)),
        (t.SQUEEZE_MIDDLE, (4, 2, 3)),
        (t.GATE_UP_HALVES, (2, 5, 5)),
        (t.GATE_UP_HALVES, (4,)),
        (t.KV_B, (17, 7)),
    ],
)
def test_shapes_that_do_not_fit(transform: t.Transform, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="expected"):
        transform.shapes(shape, CONFIG)
