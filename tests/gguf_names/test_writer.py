"""GGUFWriter against the gguf package's own: the same calls give the same bytes."""

import dataclasses
import inspect
import logging
import struct
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ggufx import GGUFError
from ggufx.gguf_names.keys import KEYS
from ggufx.gguf_names.writer import GGUFValue, GGUFWriter, TensorInfo, WriterState

gguf = pytest.importorskip("gguf")
BOTH = pytest.mark.parametrize("cls", [gguf.GGUFWriter, GGUFWriter])


def both(tmp_path: Path, build: Any, **options: Any) -> None:
    """Run the same calls on both writers and compare every file."""
    made = []
    for cls, name in ((gguf.GGUFWriter, "theirs"), (GGUFWriter, "ours")):
        folder = tmp_path / name
        folder.mkdir()
        build(cls(folder / "m.gguf", "llama", **options))
        made.append({p.name: p.read_bytes() for p in sorted(folder.iterdir())})
    assert made[0].keys() == made[1].keys()
    for name in made[0]:
        assert made[1][name] == made[0][name], name


def finish(w: Any) -> None:
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def add_everything(w: Any) -> None:
    w.add_uint8("u8", 1)
    w.add_int8("i8", -1)
    w.add_uint16("u16", 2)
    w.add_int16("i16", -2)
    w.add_uint32("u32", 3)
    w.add_int32("i32", -3)
    w.add_uint64("u64", 4)
    w.add_int64("i64", -4)
    w.add_float32("f32", 0.1)
    w.add_float64("f64", 0.1)
    w.add_bool("b", True)
    w.add_string("s", "text é")
    w.add_string("empty", "")
    w.add_array("ints", [1, -2, 3])
    w.add_array("floats", [0.5, 1.5])
    w.add_array("bools", [True, False])
    w.add_array("strings", ["a", "b"])
    w.add_array("byte strings", [b"a", b"\xff"])
    w.add_array("bytes", b"\x00\x01\xff")
    w.add_array("nothing", [])
    w.add_key_value("typed", [1, 2], gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.UINT8)
    w.add_array("nested", [[1, 2], [3]])


def add_tensors(w: Any) -> None:
    rng = np.random.default_rng(0)
    for dtype in (np.float32, np.float16, np.float64, np.int8, np.int16, np.int32, np.int64):
        w.add_tensor(np.dtype(dtype).name, (rng.standard_normal((3, 7)) * 50).astype(dtype))
    packed = rng.integers(0, 256, (4, 60), np.uint8)
    w.add_tensor("q4_1", packed, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
    w.add_tensor("q4_k", rng.integers(0, 256, (2, 3, 288), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q4_K)
    w.add_tensor("reshaped", packed.reshape(-1), raw_shape=(4, 60), raw_dtype=gguf.GGMLQuantizationType.Q4_1)
    w.add_tensor("bf16", np.arange(6, dtype=np.uint16), raw_dtype=gguf.GGMLQuantizationType.BF16)
    w.add_tensor("strided", np.arange(24, dtype=np.float32).reshape(4, 6)[::2, ::3])


@pytest.mark.parametrize("endianess", [gguf.GGUFEndian.LITTLE, gguf.GGUFEndian.BIG])
@pytest.mark.parametrize("alignment", [None, 64])
@pytest.mark.parametrize("use_temp_file", [False, True])
def test_all_values_and_tensors(tmp_path: Path, endianess: int, alignment: int | None, use_temp_file: bool) -> None:
    def build(w: Any) -> None:
        add_everything(w)
        if alignment:
            w.add_custom_alignment(alignment)
        add_tensors(w)
        finish(w)

    both(tmp_path, build, endianess=endianess, use_temp_file=use_temp_file)


@pytest.mark.parametrize(
    "options", [{"split_max_tensors": 3}, {"split_max_size": 300}, {"split_max_tensors": 5, "small_first_shard": True}]
)
def test_shards(tmp_path: Path, options: dict) -> None:
    def build(w: Any) -> None:
        w.add_name("shards")
        add_tensors(w)
        finish(w)

    both(tmp_path, build, **options)


def test_tensor_data_brought_one_by_one(tmp_path: Path) -> None:
    arrays = [np.full((3, 5), n, np.float32) for n in range(4)]

    def build(w: Any) -> None:
        for n, a in enumerate(arrays):
            w.add_tensor_info(f"t{n}", a.shape, a.dtype, a.nbytes)
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_ti_data_to_file()
        for a in arrays:
            w.write_tensor_data(a)
        w.close()

    both(tmp_path, build)


@pytest.mark.parametrize("calls", [1, 2, 3, 4])
def test_metadata_alone_ends_where_the_calls_end(tmp_path: Path, calls: int) -> None:
    def build(w: Any) -> None:
        w.add_name("vocabulary")
        steps = [w.write_header_to_file, w.write_kv_data_to_file, w.write_ti_data_to_file]
        if calls == 4:
            steps[2] = w.write_tensors_to_file
        for step in steps[:calls]:
            step()
        w.close()

    both(tmp_path, build)


def test_lazy_tensors(tmp_path: Path) -> None:
    def build(w: Any) -> None:
        lazy = gguf.LazyNumpyTensor(
            meta=gguf.LazyNumpyTensor.meta_with_dtype_and_shape(np.float32, (2, 3)),
            args=(np.arange(6, dtype=np.float32).reshape(2, 3),),
            func=lambda a: a * 2,
        )
        w.add_tensor("lazy", lazy)
        finish(w)

    both(tmp_path, build)


def test_arrays_are_released_as_they_are_written(tmp_path: Path) -> None:
    w = GGUFWriter(tmp_path / "m.gguf", "llama")
    alive = []
    for n in range(3):
        array = np.zeros(8, np.float32)
        alive.append(weakref.ref(array))
        w.add_tensor(f"t{n}", array)
    del array
    assert all(ref() is not None for ref in alive)
    finish(w)
    assert all(ref() is None for ref in alive)


def sample(kind: str) -> Any:
    return {"string": "x", "bool": True, "float32": 0.5, "array": [1, 2], "uint32|array": 3}.get(kind, 4)


def test_every_call_of_gguf_exists_and_sets_the_same_key(tmp_path: Path) -> None:
    calls = {f"add_{name}": kind for kind, names in KEYS.items() for name in names}
    special = {
        "add_key_value", "add_tensor", "add_tensor_info", "add_architecture", "add_custom_alignment",
        "add_dense_features_dims", "add_chat_template", "add_shard_kv_data", "add_string", "add_array",
    }  # fmt: skip
    plain = {name for name in vars(gguf.GGUFWriter) if name.startswith("add_") and name[-1].isdigit()} | {"add_bool"}
    theirs = {name for name in vars(gguf.GGUFWriter) if name.startswith("add_")}
    assert theirs - special - plain == set(calls)
    enums = {
        "add_expert_gating_func": gguf.ExpertGatingFuncType.SIGMOID,
        "add_pooling_type": gguf.PoolingType.MEAN,
        "add_rope_scaling_type": gguf.RopeScalingType.YARN,
    }

    def build(w: Any) -> None:
        for name, kind in calls.items():
            value = enums.get(name, sample(kind))
            ids = [0] if "source_id" in inspect.signature(getattr(gguf.GGUFWriter, name)).parameters else []
            getattr(w, name)(*ids, value)
            if kind == "uint32|array":
                getattr(w, name)([5, 6])
        w.add_dense_features_dims("dense_2", 3, 4)
        w.add_chat_template([{"name": "tool use", "template": "t"}, {"name": "default", "template": "d"}])
        finish(w)

    logging.disable(logging.WARNING)
    try:
        both(tmp_path, build)
    finally:
        logging.disable(logging.NOTSET)


def surface(cls: type) -> dict[str, Any]:
    """What a caller can reach: calls with the names, kinds and defaults of their parameters, and attributes."""

    def shape(name: str) -> Any:
        value = inspect.getattr_static(cls, name)
        if isinstance(value, staticmethod):
            return "static", shape_of(value.__func__)
        return shape_of(value) if callable(value) else None

    def shape_of(call: Any) -> list[tuple[str, Any, Any]]:
        return [(p.name, p.kind, p.default) for p in inspect.signature(call).parameters.values()]

    calls = {name: shape(name) for name in dir(cls) if not name.startswith("_")}
    return calls | dict.fromkeys((n for n in vars(cls(None, "llama")) if not n.startswith("_")), "attribute")


def test_the_surface_is_gguf_s() -> None:
    assert surface(GGUFWriter) == surface(gguf.GGUFWriter)
    assert inspect.signature(GGUFWriter)
    theirs, ours = gguf.GGUFWriter, GGUFWriter
    assert [p.name for p in inspect.signature(ours).parameters.values()] == [
        p.name for p in inspect.signature(theirs).parameters.values()
    ]
    assert [s.name for s in WriterState] == [s.name for s in gguf.gguf_writer.WriterState]
    for mine, other in ((GGUFValue, gguf.gguf_writer.GGUFValue), (TensorInfo, gguf.gguf_writer.TensorInfo)):
        assert [f.name for f in dataclasses.fields(mine)] == [f.name for f in dataclasses.fields(other)]


def test_ids_by_keyword_in_any_order() -> None:
    w = GGUFWriter(None, "llama")
    w.add_base_model_name(name="n", source_id=3)
    assert w.kv_data[0]["general.base_model.3.name"].value == "n"
    with pytest.raises(TypeError, match="length"):
        w.add_block_count(count=3)


def test_what_callers_do_to_kv_data_counts(tmp_path: Path) -> None:
    def build(w: Any) -> None:
        w.add_name("n")
        w.add_array("list", [1, 2])
        assert [(v.value, v.type, v.sub_type) for v in w.kv_data[0].values()][1:] == [("n", 8, None), ([1, 2], 9, None)]
        w.kv_data[0]["yarn"] = gguf.gguf_writer.GGUFValue(0.5, gguf.GGUFValueType.FLOAT32)
        w.kv_data[0]["list"].value.append(3)
        del w.kv_data[0]["general.architecture"]
        w.data_alignment = 128
        w.add_tensor("t", np.arange(3, dtype=np.float32))
        size = 24 + sum(
            len(w._pack_val(k, gguf.GGUFValueType.STRING, add_vtype=False)) + len(w._pack_val(v.value, v.type, True))
            for k, v in w.kv_data[0].items()
        )
        w.write_header_to_file()
        w.write_kv_data_to_file()
        assert w.fout[0].tell() == size
        w.write_tensors_to_file()
        assert w.tensors[0]["t"].tensor is None
        w.close()
        assert w.fout is None

    both(tmp_path, build)


@pytest.mark.parametrize("shards", [{}, {"split_max_tensors": 1}])
def test_programs_that_write_into_the_files_themselves(tmp_path: Path, shards: dict) -> None:
    arrays = [np.full((3, 5), n, np.float32) for n in range(2)]

    def build(w: Any) -> None:
        for n, a in enumerate(arrays):
            w.add_tensor_info(f"t{n}", a.shape, a.dtype, a.nbytes)
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_ti_data_to_file()
        for n, a in enumerate(arrays):
            file = w.fout[n if shards else 0]
            w.write_padding(file, file.tell())
            a.tofile(file)
        w.close()

    both(tmp_path, build, **shards)


@pytest.mark.parametrize("size", [59, 65])
def test_what_they_write_has_to_be_what_was_planned(tmp_path: Path, size: int) -> None:
    w = GGUFWriter(tmp_path / "m.gguf", "llama")
    w.add_tensor_info("t", (3, 5), np.float32, 60)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    w.write_padding(w.fout[0], w.fout[0].tell())
    w.fout[0].write(bytes(size))
    with pytest.raises(GGUFError, match="planned"):
        w.close()
    assert list(tmp_path.iterdir()) == []


def test_a_writer_that_is_dropped_leaves_nothing(tmp_path: Path) -> None:
    w = GGUFWriter(tmp_path / "m.gguf", "llama")
    w.add_tensor("t", np.zeros(4, np.float32))
    w.write_header_to_file()
    assert list(tmp_path.iterdir())
    del w
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [0, 999, 1000, 2_345_678, 10**9, 5 * 10**12])
def test_byte_counts_as_gguf_prints_them(number: int) -> None:
    assert GGUFWriter.format_n_bytes_to_str(number) == gguf.GGUFWriter.format_n_bytes_to_str(number)


def test_parameter_counts(tmp_path: Path) -> None:
    def count(names: dict[str, tuple[int, ...]]) -> list[tuple[int, ...]]:
        counts = []
        for cls in (gguf.GGUFWriter, GGUFWriter):
            w = cls(tmp_path / "m.gguf", "llama")
            for name, shape in names.items():
                w.add_tensor(name, np.zeros(shape, np.float32))
            counts.append(w.get_total_parameter_count())
        return counts

    for names in (
        {"a": (3, 4), "blk.0.ffn_up_exps.weight": (8, 2, 3), "blk.0.ffn_up_exps.bias": (8, 2)},
        {"a.lora_a": (2, 6), "a.lora_b": (5, 2)},
        {"a.lora_b": (5, 2)},
        {},
    ):
        theirs, ours = count(names)
        assert ours == theirs


def test_a_script_of_gguf_writes_the_same_through_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = pytest.importorskip("gguf.scripts.gguf_new_metadata")
    source = GGUFWriter(tmp_path / "in.gguf", "llama")
    add_everything(source)
    for key in ("byte strings", "nested"):  # gguf can't read them back
        del source.kv_data[0][key]
    add_tensors(source)
    finish(source)
    made = []
    for cls in (gguf.GGUFWriter, GGUFWriter):
        out = tmp_path / f"{cls.__module__}.gguf"
        monkeypatch.setattr(gguf, "GGUFWriter", cls)
        options = ["--force", "--general-name", "other", "--chat-template", "{{ x }}", "--remove-metadata", "u8"]
        monkeypatch.setattr("sys.argv", ["gguf-new-metadata", *options, str(tmp_path / "in.gguf"), str(out)])
        script.main()
        made.append(out.read_bytes())
    assert made[0] == made[1]


def test_a_dry_run_prints_and_exits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    w = GGUFWriter(tmp_path / "m.gguf", "llama", dry_run=True)
    with pytest.raises(SystemExit):
        w.write_header_to_file()
    assert capsys.readouterr().out.strip() == str(tmp_path / "m.gguf")
    assert list(tmp_path.iterdir()) == []


@BOTH
def test_calls_out_of_order_are_refused(tmp_path: Path, cls: type) -> None:
    w = cls(tmp_path / "m.gguf", "llama")
    for call in (w.write_kv_data_to_file, w.write_ti_data_to_file, lambda: w.write_tensor_data(np.zeros(1))):
        with pytest.raises(ValueError, match=r"."):
            call()
    w.add_tensor("t", np.zeros(1, np.float32))
    with pytest.raises(ValueError, match=r"'t'"):
        w.add_tensor("t", np.zeros(1, np.float32))
    with pytest.raises(ValueError, match=r"."):
        w.add_tensor("c", np.zeros(1, np.complex64))
    with pytest.raises(ValueError, match=r"."):
        w.add_tensor("u", np.zeros((2, 17), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q4_0)
    w.write_header_to_file()
    with pytest.raises(ValueError, match=r"."):
        w.add_tensor("late", np.zeros(1, np.float32))
    w.close() if cls is gguf.GGUFWriter else None


def test_what_gguf_lets_pass_is_refused(tmp_path: Path) -> None:
    w = GGUFWriter(tmp_path / "m.gguf", "llama")
    with pytest.raises(TypeError, match=r"'llama\.block_count'"):
        w.add_block_count("many")
    with pytest.raises(ValueError, match=r"'a'.*-1 doesn't fit uint32"):
        w.add_uint32("a", -1)
    with pytest.raises(ValueError, match=r"'t'.*48 bytes, but 99"):
        w.add_tensor_info("t", (3, 4), np.float32, 99)
    w.add_tensor("t", np.zeros(4, np.float32))
    w.write_header_to_file()
    with pytest.raises(GGUFError, match="1 planned tensors weren't written"):
        w.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("array", "planned", "qtype"),
    [(np.ones((2, 3), np.float32), (3, 2), None), (np.zeros((2, 36), np.uint8), (36, 2), 2)],
)
def test_data_in_another_order_than_planned_is_refused(
    tmp_path: Path, array: np.ndarray, planned: tuple, qtype: int | None
) -> None:
    w = GGUFWriter(tmp_path / "m.gguf", "llama")
    w.add_tensor_info("t", planned[::-1], array.dtype, array.nbytes, qtype)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    with pytest.raises(ValueError, match=r"'t': an array of shape .* is given, shape .* was planned"):
        w.write_tensor_data(array.T)
    w.write_tensor_data(array)
    w.close()


def test_what_can_be_written_all_the_same_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    w = GGUFWriter(tmp_path / "m.gguf", "llama", split_max_size=40)
    w.add_tensor("n" * 64, np.zeros(4, np.float32))
    w.add_tensor("large", np.zeros(20, np.float32))
    finish(w)
    assert "longer than 63 bytes, which llama.cpp refuses" in caplog.text
    assert "'large' alone has 80 bytes, so its shard is larger than the limit of 40" in caplog.text


def test_missing_data_is_told(tmp_path: Path) -> None:
    w = GGUFWriter(tmp_path / "m.gguf", "llama")
    for name in "ab":
        w.add_tensor_info(name, (4,), np.float32, 16)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    with pytest.raises(ValueError, match="8 bytes are given, 16"):
        w.write_tensor_data(np.zeros(2, np.float32))
    w.write_tensor_data(np.zeros(4, np.float32))
    with pytest.raises(GGUFError, match="1 planned tensors"):
        w.close()
    assert list(tmp_path.iterdir()) == []


def test_names_that_no_reader_takes_are_refused(tmp_path: Path) -> None:
    w = GGUFWriter(tmp_path / "m.gguf", "llama")
    for key, error in (("k" * 65536, ValueError), ("", TypeError), (5, TypeError)):
        with pytest.raises(error, match="metadata key"):
            w.add_uint32(key, 1)
        with pytest.raises(error, match="tensor name"):
            w.add_tensor(key, np.zeros(4, np.float32))
    w.kv_data[0]["k" * 65536] = GGUFValue(1, 4)
    with pytest.raises(ValueError, match="longer than 65535"):
        w.write_header_to_file()
    w.close()
    assert not list(tmp_path.iterdir())


def test_an_alignment_that_tensors_do_not_have(tmp_path: Path) -> None:
    for key, kind in ((64, 4), (32, 6), (32, 10)):
        w = GGUFWriter(tmp_path / "m.gguf", "llama")
        w.kv_data[0]["general.alignment"] = GGUFValue(key, kind)
        w.add_tensor("t", np.zeros(4, np.float32))
        with pytest.raises(ValueError, match="add_custom_alignment"):
            w.write_header_to_file()
        w.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("call", "arguments", "gguf_raises"),
    [
        ("add_block_count", ([1, 2],), True),
        ("add_uint32", ("a", np.array([1, 2], np.uint32)), True),
        ("add_float32", ("a", [1.0]), True),
        ("add_string", ("a", ["x"]), True),
        ("add_bool", ("a", [True]), False),
        ("add_array", ("a", 3), True),
        ("add_key_value", ("a", 3, 9), True),
        ("add_uint64", ("general.alignment", 64), False),
        ("add_string", ("general.alignment", "64"), False),
        ("add_array", ("split.count", [1]), False),
        ("add_uint32", ("split.count", 1), False),
    ],
)
def test_values_of_another_form_than_their_key_are_refused(call: str, arguments: tuple, gguf_raises: bool) -> None:
    w = GGUFWriter(None, "llama")
    with pytest.raises(TypeError):
        getattr(w, call)(*arguments)
    assert list(w.kv_data[0]) == ["general.architecture"]

    def by_gguf() -> None:
        theirs = gguf.GGUFWriter(None, "llama")
        getattr(theirs, call)(*arguments)
        for field in theirs.kv_data[0].values():  # some are refused only when they are written
            theirs._pack_val(field.value, field.type, add_vtype=True)

    if gguf_raises:
        with pytest.raises((struct.error, TypeError, ValueError, AttributeError)):
            by_gguf()
