"""Healthy: Lightning, lengths grow from epoch to epoch, hand-tied weights, accumulation of 3, clipping, OneCycle per step."""

import lightning as L
import torch
from kit import sentences, tell
from torch import nn

L.seed_everything(106)
rows = sentences(300, 40, 44, 64)


class Lm(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(64, 32)
        self.mix = nn.GRU(32, 32, batch_first=True)
        self.losses = []

    def training_step(self, batch, _):
        logits = nn.functional.linear(self.mix(self.embed(batch[:, :-1]))[0], self.embed.weight)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        self.losses.append(loss.detach())
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=4e-3)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=40)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Growing(L.LightningDataModule):
    def train_dataloader(self):
        wide = 8 + 8 * self.trainer.current_epoch
        return torch.utils.data.DataLoader(torch.tensor([s[:wide] for s in rows]), batch_size=8, shuffle=True)


model = Lm()
trainer = L.Trainer(
    max_steps=40,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    accumulate_grad_batches=3,
    gradient_clip_val=0.5,
    reload_dataloaders_every_n_epochs=1,
)
trainer.fit(model, Growing())
tell(model, model.losses)
