"""Opening s3:// URLs against a real S3 server on loopback (moto)."""

from __future__ import annotations

import logging

import gguf_bytes as gb
import pytest
from gguf_bytes import Array, File
from labelled import add

import ggufx
from ggufx import GGUFError
from ggufx.read import remote

pytestmark = [
    # botocore's and moto's own, not ours
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

s3fs = pytest.importorskip("s3fs", reason="s3fs (extra `s3`) is not installed")
moto_server = pytest.importorskip("moto.server", reason="moto[server] is not installed")


@pytest.fixture(scope="module")
def options():
    """A server with a bucket; what fsspec needs to reach it."""
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield {"key": "id", "secret": "swordfish", "endpoint_url": f"http://{host}:{port}"}
    server.stop()


@pytest.fixture(scope="module")
def model(options):
    file = File().add("general.architecture", gb.STRING, b"x").add("x.expert_count", gb.U32, 8)
    file.add("tokens", gb.ARRAY, Array(gb.STRING, [b"token%d" % i for i in range(30000)]))
    values = add(file, "blk.0.ffn_up_exps.weight", (8, 256, 512), 8)
    system = s3fs.S3FileSystem(**options)
    system.mkdir("bucket")
    system.pipe("bucket/models/m.gguf", file.bytes())
    for i in range(2):
        shard = File().add("split.no", gb.U16, i).add("split.count", gb.U16, 2)
        add(shard, f"t{i}", (2, 32), 8)
        system.pipe(f"bucket/models/s-{i + 1:05}-of-00002.gguf", shard.bytes())
    return values, len(file.header())


@pytest.fixture
def fetched(monkeypatch):
    """Ranges fetched through the source."""
    ranges, inner = [], remote.RemoteSource._fetch

    def fetch(self, start, stop):
        ranges.append((start, stop))
        return inner(self, start, stop)

    monkeypatch.setattr(remote.RemoteSource, "_fetch", fetch)
    return ranges


def test_one_expert_costs_one_experts_bytes(options, model, fetched):
    values, header = model
    with ggufx.open("s3://bucket/models/m.gguf", storage_options=options) as f:
        assert f.path == "s3://bucket/models/m.gguf"
        assert len(fetched) <= 3
        assert sum(b - a for a, b in fetched) <= max(4 * header, 1 << 18)
        assert f.metadata["tokens"][-1] == "token29999"
        fetched.clear()
        tensor = f["blk.0.ffn_up_exps.weight"]
        assert (tensor.expert(3).dequantize() == values[3]).all()
        assert [b - a for a, b in fetched] == [tensor.nbytes // 8]
        fetched.clear()
        assert (f.moe[0]["up"].decode([7, 0]) == values[[7, 0]]).all()
        assert sum(b - a for a, b in fetched) == tensor.nbytes // 4
        assert (tensor.dequantize() == values).all()


def test_shards(options, model):
    with ggufx.open("s3://bucket/models/s-00002-of-00002.gguf", storage_options=options) as f:
        assert list(f) == ["t0", "t1"]
        assert f["t0"].dequantize().shape == (2, 32)


def test_download(options, model):
    with ggufx.open("s3://bucket/models/m.gguf", storage_options=options, download=True) as f:
        assert f.is_mapped
        assert (f["blk.0.ffn_up_exps.weight"][7].dequantize() == model[0][7]).all()


def test_what_is_not_there(options, model, caplog):
    caplog.set_level(logging.INFO)
    with pytest.raises(FileNotFoundError, match=r"s3://bucket/models/nothing\.gguf") as caught:
        ggufx.open("s3://bucket/models/nothing.gguf", storage_options=options)
    assert "swordfish" not in str(caught.value) + caplog.text
    with pytest.raises(GGUFError, match="directory"):
        ggufx.open("s3://bucket/models", storage_options=options)
