"""ggufx.torch's modules over packed blocks: results, gradients, tracing, and that the blocks stay the file's."""

from __future__ import annotations

import copy
import io
import os
import threading

import numpy as np
import pytest

import ggufx
from ggufx import GGUFError, QType

torch = pytest.importorskip("torch", reason="torch (extra `torch`) is not installed")
from ggufx import torch as gtorch  # noqa: E402

F = torch.nn.functional
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
KINDS = ["Q4_K", "Q8_0", "Q5_1", "IQ4_XS", "TQ2_0", "MXFP4", "F16", "BF16", "F32"]


def blocks(shape, kind, seed=0):
    values = np.random.default_rng(seed).standard_normal(shape).astype("f4")
    packed = ggufx.quantize(values, kind) if QType.parse(kind) != QType.F32 else values.view(np.uint8)
    return torch.from_numpy(packed.view(np.uint8).reshape(*shape[:-1], -1))


def rows(*shape, seed=1, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.fixture
def path(tmp_path):
    values = np.random.default_rng(5).standard_normal((48, 256)).astype("f4")
    arrays = {"w": (values, "Q4_K"), "stack": (values.reshape(4, 12, 256), "Q8_0"), "bias": (values[:, 0].copy(), None)}
    with ggufx.Writer(tmp_path / "m.gguf") as writer:
        for name, (array, kind) in arrays.items():
            writer.add(name, array, qtype=kind)
        writer.add("ids", np.arange(8, dtype=np.int32).reshape(2, 4))
    return tmp_path / "m.gguf"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 3, 40])
def test_linear_is_the_product_with_the_decoded_weight(kind, dtype, count):
    layer = gtorch.Linear(blocks((24, 256), kind), qtype=kind, dtype=dtype)
    for given in DTYPES:
        x = rows(count, 256, dtype=given)
        y = layer(x)
        assert y.dtype == dtype
        assert y.shape == (count, 24)
        w = layer.dequantize().double()
        exact, scale = x.double() @ w.T, x.double().abs() @ w.abs().T
        # Results are rounded once to their dtype; where bfloat16 is multiplied as such, so is each weight.
        step = {torch.float32: 0, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}[dtype]
        each = 1e-6 if count < 32 or dtype != torch.bfloat16 else 2.0**-8
        assert ((y.double() - exact).abs() <= step * exact.abs() + each * scale).all()
    if count < 32:
        x = rows(count, 256)
        numpy = ggufx.matmul(x.numpy(), layer.blocks.numpy(), qtype=kind)
        assert torch.equal(layer(x), torch.from_numpy(numpy).to(dtype))


def test_shapes():
    layer = gtorch.Linear(blocks((24, 256), "Q4_K"), rows(24), qtype="Q4_K")
    assert layer(rows(256)).shape == (24,)
    assert layer(rows(2, 3, 256)).shape == (2, 3, 24)
    assert layer(rows(0, 256)).shape == (0, 24)
    assert torch.equal(layer(rows(2, 256))[1], layer(rows(2, 256)[1]))
    x = rows(256, 5).T
    assert torch.equal(layer(x), layer(x.contiguous()))
    with pytest.raises((GGUFError, RuntimeError), match="256"):
        layer(rows(2, 128))


def test_memory_is_the_files(path):
    with ggufx.open(path) as f:
        layer = gtorch.Linear(f["w"], f["bias"])
        table, stack = gtorch.Embedding(f["w"]), gtorch.Experts(f["stack"])
        address = f["w"].packed().__array_interface__["data"][0]
        assert layer.blocks.data_ptr() == table.blocks.data_ptr() == address
        assert stack.blocks.data_ptr() == f["stack"].packed().__array_interface__["data"][0]
        decoded, bias = torch.from_numpy(f["w"].dequantize()), torch.from_numpy(f["bias"].dequantize())
    x = rows(2, 256)  # the map lives on with the modules
    assert torch.allclose(layer(x), F.linear(x, decoded, bias), atol=1e-4)
    assert torch.equal(table(torch.tensor([[3, 3], [0, 47]])), decoded[torch.tensor([[3, 3], [0, 47]])])
    assert torch.equal(layer.dequantize(), decoded)


def test_big_endian(path, tmp_path):
    ggufx.convert_endian(path, tmp_path / "big.gguf", "big")
    with ggufx.open(path) as little, ggufx.open(tmp_path / "big.gguf") as big:
        assert torch.equal(gtorch.Linear(little["w"]).blocks, gtorch.Linear(big["w"]).blocks)


def test_order_is_that_of_the_outputs():
    order = np.random.default_rng(2).permutation(24)
    plain = gtorch.Linear(blocks((24, 256), "Q6_K"), qtype="Q6_K")
    layer = gtorch.Linear(plain.blocks, qtype="Q6_K", order=order)
    x = rows(3, 256).requires_grad_()
    assert torch.equal(layer(x), plain(x)[:, order])
    assert torch.equal(layer.dequantize(), plain.dequantize()[order])
    layer(x)[:, 0].sum().backward()
    assert torch.allclose(x.grad, layer.dequantize()[0].expand(3, -1))
    with pytest.raises(ValueError, match="once"):
        gtorch.Linear(plain.blocks, qtype="Q6_K", order=[0] * 24)


@pytest.mark.parametrize("count", [2, 40])
def test_gradients(count):
    layer = gtorch.Linear(blocks((24, 256), "Q5_K"), qtype="Q5_K")
    x = rows(count, 256).requires_grad_()
    given = rows(count, 24)
    (layer(x) * given).sum().backward()
    assert torch.allclose(x.grad, given @ layer.dequantize(), atol=1e-5)
    half = rows(count, 256, dtype=torch.bfloat16).requires_grad_()
    layer(half).sum().backward()
    assert half.grad.dtype == torch.bfloat16
    # A gradient of a gradient: of |dx|^2 with respect to dy.
    dy = given.clone().requires_grad_()
    (dx,) = torch.autograd.grad(layer(x), x, dy, create_graph=True)
    (dx**2).sum().backward()
    w = layer.dequantize()
    assert torch.allclose(dy.grad, 2 * given @ w @ w.T, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("each", [False, True], ids=["same row", "a row each"])
def test_experts(each):
    layer = gtorch.Experts(blocks((5, 24, 256), "Q4_K"), rows(5, 24), qtype="Q4_K")
    ids = torch.tensor([[0, 4], [4, 2], [2, 2]], dtype=torch.int32)
    x = rows(3, 2, 256).requires_grad_() if each else rows(3, 256).requires_grad_()
    y = layer(x, ids)
    w = layer.dequantize()
    wanted = torch.einsum("tenk,tek->ten", w[ids.long()], x if each else x[:, None].expand(3, 2, 256))
    wanted = wanted + layer.bias[ids.long()]
    assert torch.allclose(y, wanted, atol=1e-4)
    given = rows(3, 2, 24, seed=7)
    (got,) = torch.autograd.grad(y, x, given)
    (expected,) = torch.autograd.grad(wanted, x, given)
    assert torch.allclose(got, expected, atol=1e-4)
    with pytest.raises(IndexError, match="holds 5"):
        layer(x, ids + 5)


def test_embedding():
    layer = gtorch.Embedding(blocks((24, 256), "Q8_0"), qtype="Q8_0", dtype=torch.bfloat16)
    ids = torch.tensor([[1, 23], [0, 1]])
    assert torch.equal(layer(ids), layer.dequantize(torch.bfloat16)[ids])
    assert layer(ids[:0]).shape == (0, 2, 256)
    for bad in (24, -1):
        with pytest.raises(IndexError, match=str(bad)):
            layer(torch.tensor([bad]))


@pytest.mark.parametrize("requires_grad", [False, True])
def test_opcheck(requires_grad):
    from ggufx.integrations import torch_ops as ops

    table, stack = blocks((24, 256), "Q4_K"), blocks((3, 24, 256), "Q4_K")
    kind, f32, ids = int(QType.Q4_K), torch.float32, torch.tensor([[0, 2], [1, 1]])
    x, dy = rows(2, 256).requires_grad_(requires_grad), rows(2, 24).requires_grad_(requires_grad)
    each, summed = rows(2, 2, 24).requires_grad_(requires_grad), True
    for op, args in (
        (ops.linear, (x, table, kind, torch.bfloat16, "float32")),
        (ops.linear, (x, table, kind, f32, "float32")),
        (ops.linear_backward, (dy, table, kind, f32)),
        (ops.experts, (x, stack, ids, kind, f32, "float32")),
        (ops.experts_backward, (each, stack, ids, kind, f32, summed)),
        (ops.take, (ids, table, kind, f32)),
        (ops.dequantize, (table, kind, torch.float16)),
    ):
        torch.library.opcheck(op, args)


class Toy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = gtorch.Embedding(blocks((32, 256), "Q8_0"), qtype="Q8_0")
        self.up = gtorch.Linear(
            blocks((256, 256), "Q4_K", 3), rows(256), qtype="Q4_K", order=np.arange(256)[::-1].copy()
        )
        self.head = gtorch.Linear(self.table.blocks, qtype="Q8_0")

    def forward(self, ids):
        return self.head(torch.tanh(self.up(self.table(ids)) / 16))


def test_compile_and_export():
    model, ids = Toy(), torch.tensor([[1, 5, 7]])
    wanted = model(ids)
    assert torch.equal(torch.compile(model, fullgraph=True, backend="aot_eager")(ids), wanted)
    exported = torch.export.export(model, (ids,))
    assert "ggufx.linear" in str(exported.graph)
    assert torch.equal(exported.module()(ids), wanted)

    x = rows(2, 256).requires_grad_()
    torch.compile(model.up, fullgraph=True, backend="aot_eager")(x).sum().backward()
    assert torch.allclose(x.grad, model.up.dequantize().sum(0).expand(2, -1), atol=1e-4)


def test_dtypes_change_results_alone():
    model = Toy()
    before = model.up.blocks.clone()
    for change, dtype in (
        (model.half, torch.float16), (model.bfloat16, torch.bfloat16), (model.float, torch.float32),
        (lambda: model.to(torch.float16), torch.float16), (lambda: model.type(torch.bfloat16), torch.bfloat16),
    ):  # fmt: skip
        change()
        assert model.up.dtype == model.up.bias.dtype == model.up(rows(256)).dtype == dtype
        assert model.up.order.dtype == torch.int64
        assert torch.equal(model.up.blocks, before)
        assert model(torch.tensor([1])).dtype == dtype
    with pytest.raises(TypeError, match="float64"):
        model.double()


def test_state_dict_keeps_the_blocks(path):
    with ggufx.open(path) as f:
        layer = gtorch.Linear(f["w"], f["bias"])
    buffer = io.BytesIO()
    torch.save(layer.state_dict(), buffer)
    buffer.seek(0)
    state = torch.load(buffer, weights_only=True)
    assert state["blocks"].dtype == torch.uint8
    address = layer.blocks.data_ptr()
    changed = {**state, "blocks": blocks((48, 256), "Q4_K", 9)}
    layer.load_state_dict(changed)  # the file's memory can't be written to
    assert layer.blocks.data_ptr() != address
    assert torch.equal(layer.blocks, changed["blocks"])
    layer.load_state_dict(state, assign=True)
    assert layer.blocks.data_ptr() == state["blocks"].data_ptr()
    other = gtorch.Linear(torch.zeros(48, 8 * 18, dtype=torch.uint8), qtype="Q4_0")
    with pytest.raises(GGUFError, match="IQ4_NL"):
        other.load_state_dict(gtorch.Linear(other.blocks, qtype="IQ4_NL").state_dict())
    with pytest.raises(GGUFError, match="uint8"):
        layer.load_state_dict({**state, "blocks": state["blocks"].float()})
    with ggufx.open(path) as f:
        assert np.array_equal(f["w"].packed(), state["blocks"].numpy().reshape(-1))


def test_copies_share_the_blocks():
    model, ids = Toy(), torch.tensor([[4, 2]])
    twin = copy.deepcopy(model)
    assert twin.up is not model.up
    assert twin.up.blocks.data_ptr() == model.up.blocks.data_ptr()
    assert torch.equal(twin(ids), model(ids))
    twin.half()
    assert model.up.dtype == torch.float32
    assert model.up.bias.dtype == torch.float32
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer, weights_only=False)(ids), model(ids))


def test_weight_is_decoded_where_it_is_computed_with():
    layer = gtorch.Linear(blocks((24, 256), "Q4_K"), qtype="Q4_K", dtype=torch.bfloat16)
    assert isinstance(layer, torch.nn.Linear)
    assert isinstance(layer.weight, torch.Tensor)
    assert layer.weight.shape == (24, 256)
    assert layer.weight.dtype == torch.bfloat16
    assert len(layer.weight) == 24
    assert layer.weight.device == torch.device("cpu")
    assert not layer.weight.requires_grad
    decoded = layer.dequantize(torch.bfloat16)
    assert torch.equal(layer.weight.clone(), decoded)
    assert type(layer.weight + 0) is torch.Tensor
    assert torch.equal(layer.weight.T, decoded.T)
    assert torch.equal(layer.weight.data[3], decoded[3])
    x = rows(2, 256, dtype=torch.bfloat16)
    assert torch.equal(F.linear(x, layer.weight), F.linear(x, decoded))
    weight = layer.weight
    for change in (
        lambda: weight.zero_(), lambda: weight.add_(1), lambda: weight.__setitem__(0, 1.0),
        lambda: setattr(weight, "data", decoded), lambda: torch.nn.init.normal_(weight), lambda: weight.__iadd__(1),
    ):  # fmt: skip
        with pytest.raises(RuntimeError, match="can't be changed"):
            change()


def test_refusals(path):
    with ggufx.open(path) as f:
        with pytest.raises(GGUFError, match=r"m\.gguf.*'stack'.*2 dimensions"):
            gtorch.Linear(f["stack"])
        with pytest.raises(GGUFError, match=r"'ids' holds integers \(I32\)"):
            gtorch.Linear(f["ids"])
        with pytest.raises(ValueError, match="Q4_K, but qtype=Q8_0"):
            gtorch.Linear(f["w"], qtype="Q8_0")
        with pytest.raises(ValueError, match=r"\(24,\), \(48,\) was expected"):
            gtorch.Linear(f["w"], np.zeros(24))
        with pytest.raises(TypeError, match="float64"):
            gtorch.Linear(f["w"], dtype=torch.float64)
        with pytest.raises(ValueError, match="precision 'int3'"):
            gtorch.Linear(f["w"], precision="int3")
    with pytest.raises(TypeError, match="qtype="):
        gtorch.Linear(torch.zeros(2, 18, dtype=torch.uint8))
    with pytest.raises(GGUFError, match="whole blocks of 18"):
        gtorch.Linear(torch.zeros(2, 19, dtype=torch.uint8), qtype="Q4_0")
    with pytest.raises(ValueError, match=r"torch\.float32"):
        gtorch.Linear(torch.zeros(2, 18), qtype="Q4_0")


def test_threads():
    model, ids = Toy().eval(), torch.tensor([[1, 5, 7]])
    wanted = model(ids)
    results = [None] * 6

    def work(i):
        for _ in range(5):
            results[i] = model(ids)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(r, wanted) for r in results)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_fork():
    layer = gtorch.Linear(blocks((512, 4096), "Q4_K"), qtype="Q4_K")  # enough work for threads
    x = rows(1, 4096)
    wanted = layer(x)
    child = os.fork()
    if not child:
        os._exit(0 if torch.equal(layer(x), wanted) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _losses(model, parameters, steps=25):
    ids = torch.arange(12).reshape(2, 6)
    optimizer = torch.optim.Adam(parameters, lr=0.02)
    losses = []
    for _ in range(steps):
        loss = F.cross_entropy(model(ids).flatten(0, 1), (ids + 1).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.filterwarnings("ignore")
def test_peft_trains_on_top():
    peft = pytest.importorskip("peft", reason="peft is not installed")
    torch.manual_seed(0)
    model = Toy()
    before = model.up.blocks.clone()
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["up", "head"]))
    trained = [p for p in adapted.parameters() if p.requires_grad]
    assert len(trained) == 4
    losses = _losses(adapted, trained)
    assert losses[-1] < 0.5 * losses[0]
    assert torch.equal(model.up.base_layer.blocks, before)
    assert not any("blocks" in name for name in peft.get_peft_model_state_dict(adapted))
    with pytest.raises(RuntimeError, match="can't be changed"):
        adapted.merge_and_unload()


def test_an_adapter_by_hand_trains_on_top():
    torch.manual_seed(0)
    model = Toy()
    down, up = torch.nn.Linear(256, 4, bias=False), torch.nn.Linear(4, 256, bias=False)
    torch.nn.init.zeros_(up.weight)

    def adapted(ids):
        x = model.table(ids)
        return model.head(torch.tanh((model.up(x) + up(down(x))) / 16))

    losses = _losses(adapted, [*down.parameters(), *up.parameters()])
    assert losses[-1] < 0.5 * losses[0]
