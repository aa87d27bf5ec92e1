"""A Trainer of Lightning that saves every four steps.

    python pl.py FOLDER [FAULT]

Faults leave something out when a checkpoint is loaded: optimizer, scheduler, weights. Two are none of the program's:
`epoch`, whose epochs are longer (Lightning begins one that was stopped in its midst anew), and `dropout` (Lightning
keeps no random states).
"""

import sys
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

folder, faults = sys.argv[1], set(sys.argv[2:])


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2 * ("dropout" in faults)), nn.Linear(16, 1))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
        return nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / 20))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if "optimizer" in faults:
            checkpoint["optimizer_states"][0]["state"] = {}
        if "scheduler" in faults:
            checkpoint["lr_schedulers"] = []
        if "weights" in faults:
            checkpoint["state_dict"] = self.state_dict()


torch.manual_seed(0)
n = 48 if "epoch" in faults else 16
data = TensorDataset(torch.randn(n, 8), torch.randn(n, 1))
saving = ModelCheckpoint(folder, "{step}", every_n_train_steps=4, save_top_k=-1)
trainer = lightning.Trainer(
    max_steps=40,
    accelerator="cpu",
    logger=False,
    callbacks=[saving],
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Model(), DataLoader(data, batch_size=4))
