"""Values under a mask are none of the caller's numbers: refused wherever values are taken, never read silently."""

from __future__ import annotations

import gguf_bytes as gb
import numpy as np
import pytest
from gguf_bytes import File
from labelled import add

import ggufx
from ggufx import GGUFError, QType, dequantize, quant_error, quantize, quants
from ggufx.codec.arrays import check_layout, given_array
from ggufx.codec.quality import ErrorSums
from ggufx.evaluate.curves import curve
from ggufx.evaluate.windows import as_tokens
from ggufx.imatrix import Accumulator, Entry, ImportanceMatrix
from ggufx.requantize.importance import Importance

ONES = np.ones((2, 32), np.float32)
STACK = np.zeros((3, 4, 34), np.uint8)


def hidden(values, n=1):
    mask = np.zeros(np.shape(values), bool)
    mask.reshape(-1)[:n] = True
    return np.ma.array(values, mask=mask)


@pytest.mark.parametrize(
    ("label", "call"),
    [
        ("x", lambda: quantize(hidden(ONES), "Q8_0")),
        ("x", lambda: quantize([hidden(ONES[0]), ONES[1]], "Q8_0")),
        ("x", lambda: quantize(hidden(ONES), "F16")),
        ("imatrix", lambda: quantize(ONES, "Q4_0", imatrix=hidden(ONES[0]))),
        ("x", lambda: quant_error(hidden(ONES), "Q8_0")),
        ("imatrix", lambda: quant_error(ONES, "Q4_0", hidden(ONES[0]))),
        ("x", lambda: ErrorSums().add(hidden(ONES), ONES)),
        ("decoded", lambda: ErrorSums().add(ONES, hidden(ONES))),
        ("importance", lambda: ErrorSums().add(ONES, ONES, hidden(ONES[0]))),
        ("src", lambda: dequantize(hidden(np.zeros(34, np.uint8)), "Q8_0")),
        ("src", lambda: dequantize(hidden(np.zeros(4, np.int32)), "I32")),
        ("activations of 'a'", lambda: Accumulator().add("a", hidden(ONES))),
        ("activations of 'a'", lambda: Accumulator().add("a", hidden(ONES), experts=np.zeros(2, int), n_experts=1)),
        ("experts of 'a'", lambda: Accumulator().add("a", ONES, experts=hidden(np.zeros(2, int)), n_experts=1)),
        ("importance of 'a'", lambda: Importance.of({"a": hidden(ONES[0])}).columns("a", (5, 32))),
        ("ids", lambda: ggufx.matmul_experts(ONES, STACK, hidden(np.zeros((2, 1), int)), qtype="Q8_0")),
        ("x", lambda: ggufx.matmul(hidden(ONES), STACK[0], qtype="Q8_0")),
        ("data", lambda: quants.quantize(hidden(ONES), QType.Q8_0)),
        ("data", lambda: quants.quantize(hidden(ONES), QType.F32)),
        ("data", lambda: quants.dequantize(hidden(np.zeros((1, 34), np.uint8)), QType.Q8_0)),
        ("values", lambda: curve(hidden(ONES), types=["Q8_0"])),
        ("imatrix", lambda: curve(ONES, types=["Q8_0"], imatrix=hidden(ONES[0]))),
        ("tokens", lambda: as_tokens(hidden(np.zeros(4, int)))),
        ("tensor 't'", lambda: ggufx.write("never.gguf", {}, {"t": hidden(ONES)})),
    ],
)
def test_masked_values_are_refused(label, call):
    with pytest.raises(ValueError, match=rf"^(?:.*: )?{label}: 1 of \d+ values are masked; fill them first"):
        call()


def test_masked_indices_are_refused(tmp_path):
    path = tmp_path / "f.gguf"
    file = File().add("general.architecture", gb.STRING, b"x")
    add(file, "blk.0.ffn_up_exps.weight", (4, 2, 32), 8)
    path.write_bytes(file.bytes())
    with ggufx.open(path) as f:
        tensor = f["blk.0.ffn_up_exps.weight"]
        for call in (tensor.take, tensor.experts):
            with pytest.raises(ValueError, match=r"ffn_up_exps.weight'.*: 2 of 3 values are masked"):
                call(hidden([0, 1, 2], 2))
            assert len(call(hidden([0, 1, 2], 0))) == 3


def test_an_array_without_a_masked_value_is_as_good_as_any():
    assert np.array_equal(quantize(hidden(ONES, 0), "Q8_0"), quantize(ONES, "Q8_0"))
    blocks = quantize(ONES, "Q8_0")
    assert np.array_equal(dequantize(hidden(blocks, 0), "Q8_0"), dequantize(blocks, "Q8_0"))


def test_values_do_not_go_under_a_mask():
    blocks = quantize(ONES, "Q8_0")
    for qtype, src, out in (
        ("Q8_0", blocks, hidden(ONES)),
        (QType.I8, ONES.view(np.int8), np.ma.zeros((2, 128), "i1")),
    ):
        with pytest.raises(TypeError, match="out is a masked array"):
            dequantize(src, qtype, out=out)


def test_what_is_read_is_not_written():
    memory = np.zeros(64, np.float32)
    with pytest.raises(ValueError, match="blk: out overlaps what is read"):
        check_layout(memory[:32], (32,), label="blk", reads=(memory[31:],))
    check_layout(memory[:32], (32,), reads=(memory[32:],))


def test_conversions_are_silent():
    with np.errstate(all="raise"):
        assert given_array([1e300, 1e-300], "x", np.float32).tolist() == [np.inf, 0]


class TestImportanceUnderStrictNumpy:
    """Casts of an importance matrix neither warn nor raise; what doesn't fit is refused by name."""

    def test_means(self):
        entry = Entry(np.array([[1e300, 1e-300, 6.0]]), np.array([2]))
        with np.errstate(all="raise"):
            assert entry.means().tolist() == [[np.inf, 0, 3]]

    @pytest.mark.parametrize("name", ["m.gguf", "m.dat"])
    def test_sums_beyond_the_file(self, tmp_path, name):
        matrix = ImportanceMatrix({"a": Entry(np.array([[1e300, 1.0]]), np.array([2]))})
        with np.errstate(all="raise"), pytest.raises(GGUFError, match="importance of 'a': a sum is too large"):
            matrix.save(tmp_path / name)
        assert not list(tmp_path.iterdir())

    def test_counts_that_are_none(self, tmp_path):
        ggufx.write(
            tmp_path / "m.gguf",
            {"general.type": "imatrix", "imatrix.datasets": ["d"], "imatrix.chunk_count": 1, "imatrix.chunk_size": 1},
            {"a.in_sum2": np.ones((1, 4), np.float32), "a.counts": np.full((1, 1), 1e30, np.float32)},
        )
        with (
            np.errstate(all="raise"),
            pytest.raises(GGUFError, match=r"importance of 'a' has a count of 1\.0+15\d+e\+30"),
        ):
            ggufx.imatrix.load(tmp_path / "m.gguf")

    def test_small_and_large_activations(self):
        seen = Accumulator()
        with np.errstate(all="raise"):
            seen.add("a", np.full((3, 4), 1e-200))
            seen.add("a", np.full((3, 4), 1e-30, np.float32))
            seen.add("b", np.full((3, 4), 1e-200), experts=np.zeros(3, int), n_experts=2)
            with pytest.raises(GGUFError, match="column 0 isn't finite, or its square overflows"):
                seen.add("a", np.full((3, 4), 1e200))
            with pytest.raises(GGUFError, match="column 0 isn't finite, or its square overflows"):
                seen.add("b", np.full((3, 4), 1e200), experts=np.zeros(3, int))
            assert seen.result()["a"].tolist() == [np.float32(3e-60) / 6] * 4

    def test_quantizing(self):
        with np.errstate(all="raise"):
            quantize(ONES, "Q4_0", imatrix=np.full(32, 1e-300))
            with pytest.raises(GGUFError, match="too large for float32"):
                quantize(ONES, "Q4_0", imatrix=np.full(32, 1e300))
