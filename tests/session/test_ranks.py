"""Two DDP ranks: the rank whose batch was bad is named, its replay needs no collective, nobody hangs."""

import json
import os
import sys
import textwrap
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "processes"))

import warm

SCRIPT = """
import gc, torch, torch.distributed as dist
from torch import nn

def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    model = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(rank)
    for step in range(5):
        x = torch.randn(4, 4, generator=generator)
        if step == 3 and rank == 1:
            x[2, 1] = float("nan")
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    del model, optimizer, net
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()

main()
"""


@pytest.mark.slow
def test_the_rank_with_the_bad_batch_is_named(tmp_path):
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))

    ranks = ["torchrun", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, "-m", "hypocenter", "run", "--out", "run", *ranks, "train.py"]
    done = warm.run(command, cwd=tmp_path, env=os.environ, timeout=180)

    assert done.returncode == 0, done.stderr
    (found,) = json.loads((tmp_path / "run" / "diagnosis.json").read_text())["findings"]
    assert (found["step"], found["rank"], found["cause"], found["samples"]) == (3, 1, "bad-input", [2])
    assert found["remedy"]["verified"] is True
