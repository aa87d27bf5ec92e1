"""What we write is loaded by MindSpore itself, and its network gives the logits of torch's. Wants MindSpore.

MindSpore needs numpy < 2, so it lives in an environment of its own: MINDSPORE_PYTHON names its interpreter.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from test_mindspore import bits, found, held

from hypocenter.cli import main
from hypocenter.compare.weights.catalogue import read_checkpoint
from hypocenter.compare.weights.ckpt_file import FORMATS, write_ckpt
from hypocenter.compare.weights.elements import STORED

PROGRAM = Path(__file__).parent / "mindspore_gpt.py"
HERE = sys.executable if importlib.util.find_spec("mindspore") else ""
PYTHON = os.environ.get("MINDSPORE_PYTHON", HERE)
pytestmark = pytest.mark.skipif(not PYTHON, reason="no MindSpore here, and MINDSPORE_PYTHON names none")


def mindspore(*words: object) -> None:
    argv = [PYTHON, str(PROGRAM), *map(str, words)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.night
@pytest.mark.slow
@pytest.mark.parametrize("piece", [1 << 20, 5])
def test_mindspore_loads_every_format_and_shape_to_the_bit(tmp_path, piece):
    numbers = np.random.default_rng(0)
    tensors = {}
    for dtype in FORMATS.values():
        for shape in ((), (3,), (2, 3), (0, 4), (1, 2, 3, 4)):
            raw = numbers.bytes(int(np.prod(shape)) * np.dtype(STORED[dtype]).itemsize)
            raw = bytes(byte & 1 for byte in raw) if dtype == "bool" else raw
            tensors[f"ü.{dtype}.{len(shape)}"] = held(np.frombuffer(raw, STORED[dtype]).reshape(shape), dtype)
    write_ckpt(tensors, tmp_path / "a.ckpt", piece=piece)

    mindspore("load", tmp_path / "a.ckpt", tmp_path / "a.json")

    told = json.loads((tmp_path / "a.json").read_text())
    assert {name: (FORMATS[value[0]], tuple(value[1]), value[2]) for name, value in told.items()} == {
        name: (tensor.dtype, tensor.shape, bits(tensor).hex()) for name, tensor in tensors.items()
    }


@pytest.mark.night
def test_a_torch_gpt2_gives_the_same_logits_in_mindspore_and_comes_back(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=64, n_positions=16, n_embd=16, n_head=2, n_layer=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path / "hf")
    paths = {name: str(tmp_path / name) for name in ("hf", "new.ckpt", "out.ckpt", "back.safetensors", "logits.npy")}
    mindspore("init", paths["new.ckpt"])

    assert main(["weights", "convert", paths["hf"], "--like", paths["new.ckpt"], "-o", paths["out.ckpt"]]) == 0
    mindspore("logits", paths["out.ckpt"], paths["logits.npy"])
    back = main(["weights", "convert", paths["out.ckpt"], "--like", paths["hf"], "-o", paths["back.safetensors"]])

    ids = torch.arange(12)[None] * 5 % 64
    with torch.no_grad():
        wanted = model(ids).logits
        exact = model.double()(ids).logits
    got = torch.from_numpy(np.load(paths["logits.npy"]))
    floor = (wanted.double() - exact).abs().max()
    assert (got.double() - exact).abs().max() < 4 * floor
    assert back == 0
    assert found(read_checkpoint(paths["back.safetensors"])) == found(read_checkpoint(paths["hf"]))
