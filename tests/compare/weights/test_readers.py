"""Checkpoints that the libraries themselves wrote, read without them."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hypocenter.compare.weights.catalogue import read_checkpoint
from hypocenter.compare.weights.checkpoint import CheckpointError, Tensor, whole
from hypocenter.compare.weights.elements import STORED

HERE = Path(__file__).parent
FORKS = HERE.parents[1] / "ranks" / "forks.py"


def values(tensor: Tensor) -> torch.Tensor:
    bits = torch.from_numpy(tensor.read(whole(tensor.shape)).copy())
    is_bits = STORED[tensor.dtype].startswith("u") and not tensor.dtype.startswith("uint")
    return bits.view(getattr(torch, tensor.dtype)) if is_bits else bits


def same(tensor: Tensor, wanted: torch.Tensor) -> bool:
    assert tensor.dtype == str(wanted.dtype).removeprefix("torch.")
    assert tensor.shape == tuple(wanted.shape)
    flat = (one.detach().contiguous().reshape(-1).view(torch.uint8) for one in (values(tensor), wanted))
    return torch.equal(*flat)


def ranks(n: int, program: str, *words: str) -> None:
    argv = [sys.executable, str(FORKS), "--nproc-per-node", str(n), "--grace", "10", str(HERE / program), *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_torch_file_with_views_subclasses_and_arguments(tmp_path):
    base = torch.randn(6, 5)
    module = torch.nn.Linear(3, 2)
    state = {
        "turned": base.t(), "cut": base[2:, 1:4], "whole": base, "one": torch.tensor(3.5), "none": torch.empty(0, 4),
        "parameter": torch.nn.Parameter(torch.randn(3).bfloat16()), "eight": torch.randn(4).to(torch.float8_e4m3fn),
        "steps": torch.arange(4), "flags": torch.tensor([True, False]), "expanded": torch.ones(1).expand(3),
        "linear": module.state_dict(),
    }  # fmt: skip
    args = argparse.Namespace(lr=0.1, dtype=torch.bfloat16)
    torch.save({"model": state, "args": args, "seen": {1, 2}, "rng": torch.get_rng_state()}, tmp_path / "a.pt")

    found = read_checkpoint(tmp_path / "a.pt")

    flat = {name: value for name, value in state.items() if name != "linear"}
    flat |= {f"linear.{name}": value for name, value in module.state_dict().items()}
    assert set(found.tensors) == set(flat)
    for name, value in flat.items():
        if value.numel():
            assert same(found.tensors[name], value.reshape(value.shape)), name
    assert found.notes == ("only 'model' is read, not args, seen, rng",)


def test_parts_of_a_tensor_are_what_slicing_gives(tmp_path):
    cube = torch.randn(5, 300, 70)
    torch.save({"x": cube.permute(2, 0, 1)}, tmp_path / "a.pt")
    tensor = read_checkpoint(tmp_path / "a.pt").tensors["x"]

    part = tensor.read(((3, 60), (1, 5), (17, 290)))

    assert torch.equal(torch.from_numpy(part), cube.permute(2, 0, 1)[3:60, 1:5, 17:290])


def test_a_sharded_checkpoint_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(tmp_path, max_shard_size="20KB")

    found = read_checkpoint(tmp_path)

    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert set(found.tensors) == set(model.state_dict())
    assert all(same(found.tensors[name], value) for name, value in model.state_dict().items())
    assert found.settings == {"num_attention_heads": 4, "num_query_groups": 2, "head_dim": 8}


@pytest.mark.night
def test_a_distributed_checkpoint_of_two_ranks(tmp_path):
    ranks(2, "dcp_job.py", str(tmp_path))

    found = read_checkpoint(tmp_path / "dcp")

    wanted = torch.load(tmp_path / "whole.pt")
    assert found.kind == "dcp"
    assert set(found.tensors) == set(wanted)
    assert all(same(found.tensors[name], value) for name, value in wanted.items())
    assert found.notes == ("not read: optim, step",)


@pytest.mark.night
def test_real_megatron_shards_are_merged_to_the_bit(tmp_path):
    pytest.importorskip("megatron.core")
    ranks(4, "megatron_shards.py", str(tmp_path), "--tp", "2", "--pp", "2")

    found = read_checkpoint(tmp_path)

    wanted = {name: value for file in tmp_path.glob("whole_*.pt") for name, value in torch.load(file).items()}
    assert len(wanted) == 4 * 9 + 4
    assert set(found.tensors) == set(wanted)
    assert [name for name, value in wanted.items() if not same(found.tensors[name], value)] == []
    assert found.settings == {"num_attention_heads": 4, "num_query_groups": 2, "head_dim": 8}
    assert found.notes == ("merged of 2 tensor-parallel times 2 pipeline-parallel ranks",)


def test_a_missing_rank_is_named(tmp_path):
    for tp, pp in ((0, 0), (1, 1)):
        folder = tmp_path / f"mp_rank_{tp:02d}_{pp:03d}"
        folder.mkdir()
        torch.save({"model": {"a": torch.ones(2)}}, folder / "model_optim_rng.pt")

    with pytest.raises(CheckpointError, match="a rank is missing"):
        read_checkpoint(tmp_path)


def test_nothing_of_torch_is_loaded(tmp_path):
    torch.save({"a": torch.ones(2)}, tmp_path / "a.pt")
    program = (
        "import sys; from hypocenter.compare.weights.catalogue import read_checkpoint\n"
        f"print(read_checkpoint({str(tmp_path / 'a.pt')!r}).tensors['a'].read(((0, 2),)), 'torch' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "[1. 1.] False\n"
