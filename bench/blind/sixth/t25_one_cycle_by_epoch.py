"""Lightning with OneCycleLR."""

import lightning as L
import torch
from kit import FAULT, metric, tell
from torch import nn

L.seed_everything(25)
x = torch.randn(704, 16)
y = (x @ torch.randn(16, 4)).argmax(dim=1)


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 4))
        self.losses = []

    def training_step(self, batch, _):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.losses.append(loss.detach())
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        total = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-2, total_steps=int(total))
        if FAULT:
            return [optimizer], [schedule]
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


model = Classifier()
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x[:640], y[:640]), batch_size=32, shuffle=True)
trainer = L.Trainer(
    max_epochs=5,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, loader)
with torch.no_grad():
    metric("loss", nn.functional.cross_entropy(model.net(x[640:]), y[640:]))
tell(model, model.losses)
