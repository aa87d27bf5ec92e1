"""Files from strangers: nothing is executed, nothing takes the memory away, and the answer is one clear error."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hypocenter.compare.weights.catalogue import read_checkpoint
from hypocenter.compare.weights.checkpoint import CheckpointError, boxes
from hypocenter.compare.weights.elements import item_bytes
from hypocenter.compare.weights.unpickler import loads
from hypocenter.errors import HypocenterError


class Payload:
    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call


def saved(path, data: bytes):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", data)
        archive.writestr("archive/version", "3")
    return path


@pytest.mark.parametrize(
    ("function", "arguments", "named"),
    [
        (os.system, ("touch {}",), "posix.system"),
        (eval, ("open('{}', 'w')",), "builtins.eval"),
        (exec, ("open('{}', 'w')",), "builtins.exec"),
        (getattr, (io, "open"), "builtins.getattr"),
        (np.load, ("{}",), "numpy.load"),
    ],
)
def test_what_a_pickle_would_call_is_named_and_never_called(tmp_path, function, arguments, named):
    mark = tmp_path / "executed"
    words = [word.format(mark) if isinstance(word, str) else "word" for word in arguments]
    path = saved(tmp_path / "a.pt", pickle.dumps({"model": Payload(function, tuple(words))}, 2))

    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(path)

    assert not mark.exists()
    assert caught.value.what.replace("__builtin__", "builtins") in (
        f"the pickle asks for {named}", "the pickle asks for numpy.lib._npyio_impl.load",
    )  # fmt: skip
    assert "executed" in caught.value.why


def test_what_is_known_cannot_be_called_with_anything_else():
    for data in (
        b"cbuiltins\nset\n(cos\nsystem\ntR.",
        b"ctorch._utils\n_rebuild_tensor_v2\n(tR.",
        b"(X\x01\x00\x00\x00aX\x01\x00\x00\x00btR.",
        b"\x80\x04\x96\xff\xff\xff\xff\xff\x00\x00\x00.",  # BYTEARRAY8 of 2^40 bytes
        b"\x80\x02Nr\xff\xff\xff\x7f.",  # LONG_BINPUT to a memo of 2^31 entries, which is harmless in a dict
    ):
        try:
            found = loads(data, "here")
        except CheckpointError as error:
            found = error
        assert found is None or found.where == "here"


def test_a_recording_without_weights_says_how_to_get_them(tmp_path):
    (tmp_path / "run.json").write_text("{}")

    with pytest.raises(CheckpointError, match="holds no weights") as caught:
        read_checkpoint(tmp_path)

    assert "--save-initial-weights" in caught.value.fix


def test_what_is_no_checkpoint_is_told_what_would_be_one(tmp_path):
    (tmp_path / "config.json").write_text("{}")

    with pytest.raises(CheckpointError) as caught:
        read_checkpoint(tmp_path / "config.json")

    assert "safetensors" in caught.value.why
    assert caught.value.fix


def test_a_container_that_holds_itself_ends(tmp_path):
    circle: list = []
    circle.append({"again": circle})
    torch.save({"model": {"circle": circle, "a": torch.ones(2)}}, tmp_path / "a.pt")

    assert list(read_checkpoint(tmp_path / "a.pt").tensors) == ["a"]


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "a/b.safetensors", "..", "", "a\\b"])
def test_an_index_may_not_leave_its_folder(tmp_path, name):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))

    with pytest.raises(CheckpointError, match="outside its folder"):
        read_checkpoint(tmp_path)


def header(entries, size=0) -> bytes:
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + bytes(size)


@pytest.mark.parametrize(
    "data",
    [
        (1 << 62).to_bytes(8, "little") + b"{}",
        (200_000_000).to_bytes(8, "little") + b"{}",
        b"\x02\0\0",
        b"",
        header({"a": {"dtype": "F32", "shape": [1 << 40, 1 << 40], "data_offsets": [0, 8]}}, 8),
        header({"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}}, 8),
        header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, 4),
        header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}}, 8),
        header({"a": {"dtype": "Q9", "shape": [2], "data_offsets": [0, 8]}}, 8),
        header({"a": {"dtype": "F32", "shape": 2, "data_offsets": [0, 8]}}, 8),
        header({"a": [1]}), header([1]),
        (20).to_bytes(8, "little") + b'{"a":' * 4,
    ],
)  # fmt: skip
def test_a_header_that_cannot_be_true(tmp_path, data):
    (tmp_path / "a.safetensors").write_bytes(data)

    with pytest.raises(CheckpointError):
        read_checkpoint(tmp_path / "a.safetensors")


def test_a_tensor_larger_than_its_storage(tmp_path):
    torch.save({"a": torch.ones(2, 2)}, tmp_path / "a.pt")
    data = (tmp_path / "a.pt").read_bytes()
    (tmp_path / "a.pt").write_bytes(data.replace(b"K\x02K\x02\x86", b"K\xffK\xff\x86"))

    with pytest.raises(CheckpointError, match="larger than its storage"):
        read_checkpoint(tmp_path / "a.pt")


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("good")
    state = {f"layers.{i}.weight": torch.randn(3, 4) for i in range(3)}
    torch.save({"model": state, "step": 3}, folder / "a.pt")
    save_file(state, folder / "a.safetensors")
    return folder


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1 << 30), kind=st.sampled_from(["a.pt", "a.safetensors"]), n=st.integers(0, 12))
def test_damage_gives_a_checkpoint_or_one_clear_error(good, tmp_path, seed, kind, n):
    numbers = random.Random(seed)
    data = bytearray((good / kind).read_bytes())
    for _ in range(n):
        data[numbers.randrange(min(len(data), 600) if n % 2 else len(data))] = numbers.randrange(256)
    if n % 3 == 0:
        del data[numbers.randrange(len(data)) :]
    (tmp_path / kind).write_bytes(data)

    try:
        for tensor in read_checkpoint(tmp_path / kind).tensors.values():
            for box in boxes(tensor.shape):
                assert tensor.read(box).nbytes % item_bytes(tensor.dtype) == 0
    except HypocenterError as error:
        told = error.where or error.why
    else:
        told = "a checkpoint"
    assert told
