"""A Trainer of Lightning: `python pl.py [--batch B] [WORD ...]`.

Words beside those of parts.py: compiled, undivided (the step takes Lightning's division back), shared (no
DistributedSampler), unwrapped (no DDP).
"""

import os
import sys
from typing import Any

import lightning
import parts
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler

torch.manual_seed(0)
parts.plant()
n_ranks = int(os.environ.get("WORLD_SIZE", "1"))


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = parts.net()
        self.called = [torch.compile(self.net) if "compiled" in parts.WORDS else self.net]

    def training_step(self, batch: dict[str, Tensor], _: int) -> Tensor:
        loss = functional.cross_entropy(self.called[0](batch["x"]), batch["labels"])
        return loss * self.trainer.accumulate_grad_batches if "undivided" in parts.WORDS else loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-2)


class Apart(DDPStrategy):
    def configure_ddp(self) -> None:
        pass


trainer = lightning.Trainer(
    max_steps=6,
    accelerator="cpu",
    devices=n_ranks,
    strategy="auto" if n_ranks == 1 else Apart() if "unwrapped" in parts.WORDS else DDPStrategy(),
    use_distributed_sampler=False,  # Lightning's own shuffles
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
size = int(sys.argv[sys.argv.index("--batch") + 1]) if "--batch" in sys.argv else 8
data, sampler = parts.Samples(), None
if n_ranks > 1 and "shared" not in parts.WORDS:
    sampler = DistributedSampler(data, n_ranks, int(os.environ["RANK"]), shuffle=False)
trainer.fit(Model(), DataLoader(data, batch_size=size, sampler=sampler))
