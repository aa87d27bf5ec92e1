"""A LightningModule under the Lightning Trainer, which steps with a closure."""

import torch
from lightning import LightningModule, Trainer
from torch import nn

torch.set_num_threads(1)


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 1)

    def training_step(self, batch, index):
        return self.net(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.1)


torch.manual_seed(0)
data = torch.utils.data.DataLoader(torch.randn(16, 4), batch_size=2)
Trainer(
    max_steps=6, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False,
).fit(Model(), data)  # fmt: skip
print("trained", flush=True)
