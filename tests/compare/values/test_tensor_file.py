from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from hypocenter.compare.values.bits import decoded
from hypocenter.compare.values.tensor_file import open_tensor_file
from hypocenter.errors import CorruptRecordingError

FLOATS = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
]  # fmt: skip


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.int8, torch.bool], ids=str)
def test_reads_what_torch_wrote(tmp_path, dtype):
    values = torch.tensor([[0.0, 1.5, -2.0], [0.001, 96.0, -0.25]]).to(dtype)
    save_file({"in[0]": values, "empty": values[:0], "one": values[0, 1].clone()}, tmp_path / "a.safetensors")

    found = open_tensor_file(tmp_path / "a.safetensors").tensors

    assert found["in[0]"].dtype == str(dtype).removeprefix("torch.")
    np.testing.assert_array_equal(found["in[0]"].values(), values.double().numpy())
    assert found["empty"].shape == (0, 3)
    assert found["one"].shape == ()


@pytest.mark.parametrize("dtype", [d for d in FLOATS if d.itemsize <= 1], ids=str)
def test_all_256_values_of_float8_are_what_torch_says(dtype):
    bits = torch.arange(256, dtype=torch.int16).to(torch.uint8)

    found = decoded(bits.numpy(), str(dtype).removeprefix("torch."))

    np.testing.assert_array_equal(found, bits.view(dtype).double().numpy())


def test_all_bfloat16_values_are_what_torch_says():
    bits = np.arange(1 << 16).astype(np.uint16)

    found = decoded(bits, "bfloat16")

    np.testing.assert_array_equal(found, torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).double().numpy())


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.booleans(), st.integers(-9, 300), st.integers(-9, 300))
def test_refuses_what_is_no_tensor_file(tmp_path_factory, garbage, has_header, start, stop):
    path = tmp_path_factory.mktemp("files") / "x.safetensors"
    entry = {"a": {"dtype": "F32", "shape": [3, 7], "data_offsets": [start, stop]}}
    header = json.dumps(entry).encode() if has_header else garbage
    path.write_bytes(len(header).to_bytes(8, "little") + header + garbage)

    try:
        found = open_tensor_file(path)
    except CorruptRecordingError:
        return
    assert all(one.values().shape == one.shape for one in found.tensors.values())
