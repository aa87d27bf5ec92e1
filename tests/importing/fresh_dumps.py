"""Run by a Python that has msprobe: writes small dumps of each level and task, forked from one process that is warm.

    python fresh_dumps.py OUT

makes OUT/{L0,L1,mix,L0_tensor,L1_tensor}/step*/proc*/ and OUT/two_ranks/step*/rank*/ with mix statistics.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from msprobe.pytorch import PrecisionDebugger
from torch import nn

CASES = {"L0": ("L0", "statistics"), "L1": ("L1", "statistics"), "mix": ("mix", "statistics"),
         "L0_tensor": ("L0", "tensor"), "L1_tensor": ("L1", "tensor")}  # fmt: skip


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(F.gelu(self.norm(self.a(x))))


def dump(out: Path, level: str, task: str, rank: int = 0, size: int = 1) -> None:
    """Two steps of training, dumped."""
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    out.mkdir(parents=True, exist_ok=True)
    settings = {"scope": [], "list": [], "data_mode": ["all"]}
    config = out.parent / f"{out.name}-{rank}.json"
    config.write_text(json.dumps({
        "task": task, "dump_path": str(out), "rank": [], "step": [], "level": level,
        "statistics": {**settings, "summary_mode": "statistics"}, "tensor": settings,
    }))  # fmt: skip
    model = Net()
    if size > 1:
        dist.init_process_group("gloo", rank=rank, world_size=size, init_method=f"file://{out}.store")
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    debugger = PrecisionDebugger(config_path=str(config))
    for _ in range(2):
        x, y = torch.randn(4, 6), torch.randint(0, 3, (4,))
        debugger.start(model=model)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        debugger.stop()
        debugger.step()


def main(out: Path) -> int:
    """All of them; 0 when each process ended well."""
    jobs = [(out / name, *case, 0, 1) for name, case in CASES.items()]
    jobs += [(out / "two_ranks", "mix", "statistics", rank, 2) for rank in range(2)]
    children: list[int] = []
    for job in jobs:
        child = os.fork()
        if not child:
            code = 1
            try:
                dump(*job)
                code = 0
            finally:
                os._exit(code)
        children.append(child)
        if job[-1] == 1:
            children.pop()
            _, status = os.waitpid(child, 0)
            if status:
                return 1
    return int(any(os.waitpid(child, 0)[1] for child in children))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
