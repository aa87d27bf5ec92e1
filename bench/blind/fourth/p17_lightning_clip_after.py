"""Lightning, automatic optimization: the gradients are clipped in a hook that comes after the optimizer's step."""

import lightning as L
import torch
from kit import FAULT, tell
from torch import nn

L.seed_everything(17)


class Forecaster(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 32, num_layers=2, batch_first=True)
        self.head = nn.Linear(32, 1)
        self.losses = []

    def training_step(self, batch, _):
        x, y = batch
        out, _ = self.lstm(x)
        loss = nn.functional.mse_loss(self.head(out[:, -1]), y)
        self.losses.append(loss.detach())
        return loss

    def clip(self):
        torch.nn.utils.clip_grad_norm_(self.parameters(), 0.25)

    def on_before_optimizer_step(self, optimizer):
        if not FAULT:
            self.clip()

    def on_train_batch_end(self, *_):
        if FAULT:
            self.clip()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


x = torch.randn(512, 20, 3)
data = torch.utils.data.TensorDataset(x, 5 * x[:, -3:, :1].sum(1) + 2)
model = Forecaster()
trainer = L.Trainer(
    max_steps=40,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=16, shuffle=True))
tell(model, model.losses)
