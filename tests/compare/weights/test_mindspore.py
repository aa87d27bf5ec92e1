"""MindSpore's checkpoints: what MindSpore wrote itself, what we write, ranks merged by strategies, damaged files."""

from __future__ import annotations

import json
import random
import shutil
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from hypocenter.cli import main
from hypocenter.compare.weights import wire
from hypocenter.compare.weights.catalogue import read_checkpoint
from hypocenter.compare.weights.checkpoint import CheckpointError, StoredTensor, Tensor, boxes, row_major, whole
from hypocenter.compare.weights.ckpt_file import FORMATS, write_ckpt
from hypocenter.compare.weights.elements import STORED, item_bytes
from hypocenter.errors import HypocenterError

SAMPLES = Path(__file__).parent / "mindspore_samples"
TRUTH = json.loads((SAMPLES / "truth.json").read_text())


class Held(Tensor):
    """A tensor in memory."""

    __slots__ = ("array",)

    def read(self, box):
        return self.array[tuple(slice(*span) for span in box)]


def held(array, dtype=None):
    tensor = Held(shape=array.shape, dtype=dtype or str(array.dtype))
    object.__setattr__(tensor, "array", array)
    return tensor


def bits(tensor):
    return np.ascontiguousarray(tensor.read(whole(tensor.shape))).tobytes()


def told(name):
    """What MindSpore loads of a sample, without what is no weight: name -> format, shape, bits."""
    left_out = ("epoch_num", "note", "flag", "global_step")
    return {
        key: (FORMATS[value[0]], tuple(value[1]), bytes.fromhex(value[2]))
        for key, value in TRUTH[name].items()
        if key not in left_out and not key.startswith("adam_m.")
    }


def found(checkpoint):
    return {name: (tensor.dtype, tensor.shape, bits(tensor)) for name, tensor in checkpoint.tensors.items()}


# What MindSpore wrote


@pytest.mark.parametrize("name", ["plain.ckpt", "crc.ckpt", "plain.safetensors"])
def test_a_file_of_mindspore_is_read_as_mindspore_reads_it(name):
    checkpoint = read_checkpoint(SAMPLES / name)

    wanted = told(name)
    assert checkpoint.kind == "mindspore"
    assert {"wte.embedding_table", "norm.gamma", "fc.bias", "half", "one", "ids"} <= set(wanted)
    if name == "plain.ckpt":
        assert checkpoint.notes == ("not read: 1 tensor of the optimizer, note, epoch_num",)
        assert found(checkpoint).pop("flag") == ("bool", (), b"\1")
        wanted["flag"] = ("bool", (), b"\1")
    assert found(checkpoint) == wanted


def test_ranks_that_mindspore_cut_are_merged_to_the_bit(tmp_path):
    checkpoint = read_checkpoint(SAMPLES / "ranks")

    assert found(checkpoint) == told("ranks")
    assert checkpoint.notes == (
        "merged of 4 ranks in 1 pipeline stage, by ckpt_strategy_rank_0.ckpt", "not read: global_step",
    )  # fmt: skip


@pytest.mark.parametrize("mode", ["AES-GCM", "AES-CBC", "SM4-CBC"])
def test_an_encrypted_file_is_refused_with_what_to_do(mode, capsys):
    assert main(["weights", "diff", str(SAMPLES / f"{mode}.ckpt"), str(SAMPLES / "plain.ckpt")]) == 4

    said = capsys.readouterr().err
    assert "the checkpoint is encrypted" in said
    assert "dec_key" in said


# What we write


FORMAT = st.sampled_from(sorted(set(FORMATS.values())))
SHAPE = st.lists(st.integers(1, 5), max_size=4).map(tuple)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    named=st.dictionaries(st.text(min_size=1, max_size=12), st.tuples(FORMAT, SHAPE), min_size=1, max_size=4),
    piece=st.integers(1, 40),
    seed=st.integers(0, 99),
)
def test_what_is_written_is_read_to_the_bit_however_it_is_cut(tmp_path, named, piece, seed):
    numbers = np.random.default_rng(seed)
    tensors = {}
    for name, (dtype, shape) in named.items():
        raw = numbers.bytes(int(np.prod(shape)) * item_bytes(dtype))
        if dtype == "bool":
            raw = bytes(byte & 1 for byte in raw)
        tensors[name] = held(np.frombuffer(raw, STORED[dtype]).reshape(shape), dtype)
    path = tmp_path / "a.ckpt"

    write_ckpt(tensors, path, piece=piece)

    again = read_checkpoint(path)
    kept = {name: tensor for name, tensor in tensors.items() if name in again.tensors}
    assert found(again) == {name: (t.dtype, t.shape, bits(t)) for name, t in kept.items()}
    for tensor, wanted in ((again.tensors[name], kept[name]) for name in kept if kept[name].shape):
        box = tuple(sorted(numbers.integers(0, size + 1, 2).tolist()) for size in wanted.shape)
        assert np.array_equal(tensor.read(tuple(map(tuple, box))).tobytes(), wanted.read(box).tobytes())


def test_our_file_is_byte_by_byte_what_mindspore_writes(tmp_path):
    source = read_checkpoint(SAMPLES / "crc.ckpt")
    left_out = source.tensors.keys() ^ TRUTH["crc.ckpt"].keys()

    write_ckpt(source.tensors, tmp_path / "a.ckpt")

    theirs = (SAMPLES / "crc.ckpt").read_bytes()[:-17]
    assert left_out == {"adam_m.fc.weight"}
    at = theirs.index(b"adam_m.fc.weight") - 4
    assert (tmp_path / "a.ckpt").read_bytes() == theirs[:at]


def test_memory_does_not_grow_with_the_tensor(tmp_path):
    source = tmp_path / "zeros"
    with source.open("wb") as file:
        file.truncate(128 << 20)
    shape = (32, 1 << 20)
    stored = StoredTensor(shape=shape, dtype="float32", path=source, offset=0, strides=row_major(shape))
    tracemalloc.start()

    write_ckpt({"a": stored}, tmp_path / "a.ckpt", piece=(40 << 20) + 1)
    tensor = read_checkpoint(tmp_path / "a.ckpt").tensors["a"]
    n_bytes = sum(tensor.read(box).nbytes for box in boxes(shape))

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert n_bytes == 128 << 20
    assert peak < 32 << 20


def test_a_ckpt_of_torch_is_still_read_as_one(tmp_path):
    torch.save({"state_dict": {"a": torch.ones(2)}, "epoch": 1}, tmp_path / "lightning.ckpt")

    assert read_checkpoint(tmp_path / "lightning.ckpt").kind == "torch"
    assert read_checkpoint(tmp_path).kind == "torch"


def test_what_a_ckpt_cannot_hold_is_refused_before_anything_is_written(tmp_path):
    for array, dtype in ((np.zeros(2, "c8"), "complex64"), (np.zeros(0, "f4"), None)):
        with pytest.raises(HypocenterError, match="of MindSpore has no"):
            write_ckpt({"a": held(array, dtype)}, tmp_path / "a.ckpt")

    assert list(tmp_path.iterdir()) == []


# Names


def test_hugging_face_to_mindformers_and_back(tmp_path):
    numbers = torch.Generator().manual_seed(0)
    sizes = {"q_proj": (8, 8), "k_proj": (4, 8), "v_proj": (4, 8), "o_proj": (8, 8)}
    state = {
        f"model.layers.0.self_attn.{name}.weight": torch.randn(size, generator=numbers) for name, size in sizes.items()
    }
    state |= {f"model.layers.0.mlp.{n}_proj.weight": torch.randn(12, 8, generator=numbers) for n in ("gate", "up")}
    state |= {
        "model.layers.0.mlp.down_proj.weight": torch.randn(8, 12, generator=numbers),
        "model.embed_tokens.weight": torch.randn(16, 8, generator=numbers),
        "lm_head.weight": torch.randn(16, 8, generator=numbers),
    }
    for name in ("layers.0.input_layernorm", "layers.0.post_attention_layernorm", "norm"):
        state[f"model.{name}.weight"] = torch.randn(8, generator=numbers)
    state = {name: value.bfloat16() for name, value in state.items()}
    save_file(state, tmp_path / "hf.safetensors")
    there, back = tmp_path / "there.ckpt", tmp_path / "back.safetensors"

    assert (
        main(["weights", "convert", str(tmp_path / "hf.safetensors"), "--naming", "mindformers", "-o", str(there)]) == 0
    )
    assert main(["weights", "convert", str(there), "--naming", "hf", "-o", str(back)]) == 0

    written = read_checkpoint(there)
    assert written.kind == "mindspore"
    assert {"model.tok_embeddings.embedding_weight", "model.layers.0.attention.wq.weight"} <= set(written.tensors)
    assert found(read_checkpoint(back)) == found(read_checkpoint(tmp_path / "hf.safetensors"))
    assert main(["weights", "diff", str(tmp_path / "hf.safetensors"), str(there)]) == 0


def test_gpt2_of_hugging_face_to_mindformers_and_back(tmp_path):
    numbers = np.random.default_rng(0)
    h, n = 4, 2
    theirs = {"wte.weight": (9, h), "wpe.weight": (5, h), "ln_f.weight": (h,), "ln_f.bias": (h,)}
    for i in range(n):
        sizes = {"attn.c_attn": (h, 3 * h), "attn.c_proj": (h, h), "mlp.c_fc": (h, 4 * h), "mlp.c_proj": (4 * h, h)}
        theirs |= {f"h.{i}.{name}.weight": size for name, size in sizes.items()}
        theirs |= {f"h.{i}.{name}.bias": size[1:] for name, size in sizes.items()}
        theirs |= {f"h.{i}.{norm}.{leaf}": (h,) for norm in ("ln_1", "ln_2") for leaf in ("weight", "bias")}
    state = {f"transformer.{k}": torch.from_numpy(numbers.standard_normal(v).astype("f4")) for k, v in theirs.items()}
    torch.save(state, tmp_path / "hf.pt")
    wanted = as_mindformers({name: value.numpy() for name, value in state.items()}, n)
    write_ckpt({name: held(np.zeros_like(array)) for name, array in wanted.items()}, tmp_path / "new.ckpt")
    paths = {name: str(tmp_path / name) for name in ("hf.pt", "new.ckpt", "there.ckpt", "back.safetensors")}

    there = main(["weights", "convert", paths["hf.pt"], "--like", paths["new.ckpt"], "-o", paths["there.ckpt"]])
    argv = ["weights", "convert", paths["there.ckpt"], "--like", paths["hf.pt"], "-o", paths["back.safetensors"]]

    assert there == 0
    assert found(read_checkpoint(tmp_path / "there.ckpt")) == {
        name: ("float32", array.shape, array.tobytes()) for name, array in wanted.items()
    }
    assert main(argv) == 0
    assert found(read_checkpoint(tmp_path / "back.safetensors")) == found(read_checkpoint(tmp_path / "hf.pt"))


def as_mindformers(state, n):
    """As MindFormers' own conversion of GPT-2 has it: queries, keys and values apart and turned, the rest not."""
    norms = {"weight": "gamma", "bias": "beta"}
    made = {f"backbone.layernorm.{norms[leaf]}": state[f"transformer.ln_f.{leaf}"] for leaf in norms}
    for theirs, ours in (("wte", "word_embedding"), ("wpe", "position_embedding")):
        made[f"backbone.embedding.{ours}.embedding_table"] = state[f"transformer.{theirs}.weight"]
    names = {"attn.c_proj": "attention.projection", "mlp.c_fc": "output.mapping", "mlp.c_proj": "output.projection"}
    for a, b in ((f"transformer.h.{i}", f"backbone.blocks.{i}") for i in range(n)):
        for leaf, norm in norms.items():
            made |= {f"{b}.{ours}.{leaf}": state[f"{a}.{theirs}.{leaf}"] for theirs, ours in names.items()}
            made |= {f"{b}.layernorm{k}.{norm}": state[f"{a}.ln_{k}.{leaf}"] for k in (1, 2)}
            parts = np.split(state[f"{a}.attn.c_attn.{leaf}"], 3, axis=-1)
            made |= {f"{b}.attention.dense{k}.{leaf}": part.T.copy() for k, part in enumerate(parts, start=1)}
    return made


def test_norms_and_embeddings_of_mindspores_own_cells(tmp_path, capsys):
    sample = read_checkpoint(SAMPLES / "crc.ckpt").tensors
    names = {"wte.embedding_table": "wte.weight", "norm.gamma": "norm.weight", "norm.beta": "norm.bias"}
    state = {names.get(name, name): torch.from_numpy(tensor.read(whole(tensor.shape)).copy())
             for name, tensor in sample.items() if name != "half"}  # fmt: skip
    half = torch.from_numpy(sample["half"].read(whole((2, 3))).copy()).view(torch.bfloat16)
    torch.save({**state, "half": half}, tmp_path / "torch.pt")
    sides = [str(tmp_path / "torch.pt"), str(SAMPLES / "crc.ckpt")]

    assert main(["weights", "diff", *sides]) == 0
    assert main(["weights", "convert", sides[0], "--like", sides[1], "-o", str(tmp_path / "out.ckpt")]) == 0

    assert found(read_checkpoint(tmp_path / "out.ckpt")) == told("crc.ckpt")


# Damage


def value(tag=b"a", dims=(2,), dtype=b"Float32", content=bytes(8), more=b""):
    tensor = b"".join(b"\x08" + wire.varint(n) for n in dims) + wire.head(2, len(dtype)) + dtype
    tensor += wire.head(3, len(content)) + content
    inside = wire.head(1, len(tag)) + tag + wire.head(2, len(tensor)) + tensor + more
    return wire.head(1, len(inside)) + inside


def test_texts_and_hash_tables_are_named_and_not_read(tmp_path):
    table = wire.head(1, 5) + b"table" + wire.head(3, 0)
    (tmp_path / "a.ckpt").write_bytes(
        value() + wire.head(1, len(table)) + table + value(b"t", (0,), b"str", b"x\0\0\0")
    )

    checkpoint = read_checkpoint(tmp_path / "a.ckpt")

    assert list(checkpoint.tensors) == ["a"]
    assert checkpoint.notes == ("not read: table, t",)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (value()[:-3], "are there"),
        (value() + b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "are there"),
        (value() + b"\x0a" + b"\xff" * 20, "more than 64 bits"),
        (value() + b"\x0b", "no field is of kind 3"),
        (value() + b"\x12\x00", "no value of a checkpoint"),
        (value(dims=(3,)), "8 are there"),
        (value(dims=(1 << 62, 1 << 62)), "8 are there"),
        (value(dims=(1 << 64) - 1 and ((1 << 64) - 2,)), "no shape"),
        (value(dims=(1,) * 65), "no shape"),
        (value(dtype=b"Int4"), "unknown format 'Int4'"),
        (value(tag=b"\xff"), "no text"),
        (value(tag=b""), "no name"),
        (value(more=b"\x2a\x00"), "nothing that a value has"),
        (value() + value(b"b") + value(), "two tensors have one name"),
        (value() + value(dims=(1, 2)), "two tensors have one name"),
        (value() + b"crc_num" + (zlib.crc32(value()) ^ 1).to_bytes(10, "big"), "checksum"),
        (b"\x80\x02}q\x00.", "torch"),
        (b"no checkpoint at all", "damaged"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_true(tmp_path, data, why):
    (tmp_path / "a.ckpt").write_bytes(data)

    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(tmp_path / "a.ckpt")

    error = caught.value
    assert why in f"{error.what} {error.why} {error.where}"
    assert str(tmp_path) in error.where


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 1 << 30),
    name=st.sampled_from(["plain.ckpt", "crc.ckpt", "ranks", "strategy", "json"]),
    n=st.integers(0, 6),
    is_cut=st.booleans(),
)
def test_damage_gives_a_checkpoint_or_one_clear_error(tmp_path, seed, name, n, is_cut):
    numbers = random.Random(seed)
    shutil.rmtree(tmp_path / "x", ignore_errors=True)
    shutil.copytree(SAMPLES, tmp_path / "x")
    at = tmp_path / "x" / name
    file = {"ranks": at / "rank_1" / "net_1.ckpt", "strategy": at / "ckpt_strategy_rank_0.ckpt"}.get(name, at)
    if name == "json":
        two_stages(tmp_path / "x" / "json", merged=True)
        at, file = at / "checkpoint", at / "strategy" / "merged_strategy.json"
    data = bytearray(file.read_bytes())
    for _ in range(n):
        data[numbers.randrange(len(data))] ^= 1 << numbers.randrange(8)
    if is_cut:
        del data[numbers.randrange(len(data)) :]
    is_changed = bytes(data) != file.read_bytes()
    file.write_bytes(data)

    try:
        checkpoint = read_checkpoint(tmp_path / "x" / "ranks" if name == "strategy" else at)
        for tensor in checkpoint.tensors.values():
            for box in boxes(tensor.shape):
                assert tensor.read(box).nbytes % item_bytes(tensor.dtype) == 0
    except HypocenterError as error:
        where = error.where
    else:
        where = "a checkpoint"
        assert not (name == "crc.ckpt" and is_changed and not is_cut and bytes(data[-17:-10]) == b"crc_num")
    assert where


# Ranks


def slice_of(array, counts, index):
    for dim, (n, i) in enumerate(zip(counts, index, strict=True)):
        array = np.split(array, n, axis=dim)[i]
    return array


def two_stages(folder, *, merged):
    """Two stages of two devices, JSON strategies; the embedding is on both stages. What the network is."""
    numbers = np.random.default_rng(0)
    names = {0: ["embed.weight", "layers.0.weight"], 1: ["layers.1.weight", "embed.weight"]}
    network = {name: numbers.standard_normal((4, 6)).astype("f4") for of_stage in names.values() for name in of_stage}
    item = {
        "dev_matrix": [2],
        "tensor_map": [-1, 0],
        "field": 0,
        "opt_weight_shard_step": 0,
        "opt_weight_shard_size": 0,
    }
    layouts = {stage: dict.fromkeys(of_stage, item) for stage, of_stage in names.items()}
    (folder / "strategy").mkdir(parents=True)
    for rank in range(4):
        stage = rank // 2
        tensors = {name: held(slice_of(network[name], (1, 2), (0, rank % 2))) for name in names[stage]}
        (folder / "checkpoint" / f"rank_{rank}").mkdir(parents=True)
        for step in (9, 10):
            write_ckpt(tensors, folder / "checkpoint" / f"rank_{rank}" / f"net_rank_{rank}-1_{step}.ckpt")
        if not merged:
            content = {
                "parallel_strategy_item": {"op": {"stage": stage}}, "parallel_layout_item": layouts[stage],
            }  # fmt: skip
            (folder / "strategy" / f"ckpt_strategy_rank_{rank}.json").write_text(json.dumps(content))
    if merged:
        items = {f"{stage}-{name}": item for stage, of_stage in layouts.items() for name in of_stage}
        content = {"parallel_strategy_item": {"op": {"stage": 0}}, "parallel_layout_item": items}
        (folder / "strategy" / "merged_strategy.json").write_text(json.dumps(content))
    return network


@pytest.mark.parametrize("merged", [False, True])
def test_pipeline_stages_are_merged_at_the_last_step_that_all_ranks_have(tmp_path, merged):
    network = two_stages(tmp_path, merged=merged)
    (tmp_path / "checkpoint" / "rank_3" / "net_rank_3-1_10.ckpt").unlink()

    checkpoint = read_checkpoint(tmp_path / "checkpoint")

    assert {name: bits(tensor) for name, tensor in checkpoint.tensors.items()} == {
        name: array.tobytes() for name, array in network.items()
    }
    assert checkpoint.notes[1] == "of epoch 1, step 9: the last that all ranks have"


def test_ranks_that_left_out_what_others_hold_too(tmp_path):
    shutil.copytree(SAMPLES / "strategy", tmp_path / "strategy")
    held_by: set[tuple[str, bytes]] = set()
    n_left_out = 0
    for rank in range(4):
        source = read_checkpoint(SAMPLES / "ranks" / f"rank_{rank}" / f"net_{rank}.ckpt").tensors
        kept = {name: tensor for name, tensor in source.items() if (name, bits(tensor)) not in held_by}
        held_by |= {(name, bits(tensor)) for name, tensor in kept.items()}
        n_left_out += len(source) - len(kept)
        (tmp_path / "ranks" / f"rank_{rank}").mkdir(parents=True)
        state = {name: torch.from_numpy(tensor.read(whole(tensor.shape)).copy()) for name, tensor in kept.items()}
        save_file(state, tmp_path / "ranks" / f"rank_{rank}" / "net.safetensors", metadata={"format": "ms"})

    checkpoint = read_checkpoint(tmp_path / "ranks")

    assert n_left_out > 4
    assert found(checkpoint) == told("ranks")


def test_a_strategy_of_another_checkpoint_is_refused(tmp_path):
    shutil.copytree(SAMPLES / "ranks", tmp_path / "ranks")
    layouts = {"rows.weight": {"dev_matrix": [1 << 16], "tensor_map": [-1, -1]}}
    item = {"parallel_layout_item": layouts}
    (tmp_path / "strategy.json").write_text(json.dumps(item))

    with pytest.raises(CheckpointError, match="not of this checkpoint"):
        read_checkpoint(tmp_path / "ranks")

    layouts["rows.weight"]["dev_matrix"] = [4]
    layouts["rows.weight"]["tensor_map"] = [0]
    (tmp_path / "strategy.json").write_text(json.dumps(item))
    with pytest.raises(CheckpointError, match="do not go together"):
        read_checkpoint(tmp_path / "ranks")


def test_what_is_missing_of_a_parallel_checkpoint_is_named(tmp_path):
    two_stages(tmp_path / "rank", merged=False)
    shutil.rmtree(tmp_path / "rank" / "checkpoint" / "rank_3")
    two_stages(tmp_path / "strategy", merged=False)
    shutil.rmtree(tmp_path / "strategy" / "strategy")
    two_stages(tmp_path / "stage", merged=False)
    for rank in (2, 3):
        (tmp_path / "stage" / "strategy" / f"ckpt_strategy_rank_{rank}.json").unlink()

    said = {}
    for name in ("rank", "strategy", "stage"):
        with pytest.raises(CheckpointError) as caught:
            read_checkpoint(tmp_path / name / "checkpoint")
        said[name] = f"{caught.value.what}: {caught.value.why}"

    assert said["rank"] == "a rank is missing: rank 3 should have a part of it"
    assert said["strategy"].startswith("how the ranks' tensors are cut is not told")
    assert said["stage"] == "no strategy file is of pipeline stage 1: there are those of stage 0"
