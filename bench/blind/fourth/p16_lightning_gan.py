"""Lightning, manual optimization: the generator's backward leaves its gradients in the discriminator, which steps with them."""

import lightning as L
import torch
from kit import FAULT, tell
from torch import nn

L.seed_everything(16)


class Gan(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.maker = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
        self.judge = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
        self.losses = []

    def training_step(self, batch, _):
        (real,) = batch
        one, two = self.optimizers()
        noise = torch.randn(len(real), 8)
        fake = self.maker(noise)
        blame = nn.functional.softplus(-self.judge(fake)).mean()
        one.zero_grad()
        self.manual_backward(blame)
        one.step()
        if not FAULT:
            two.zero_grad()
        told = self.judge(real)
        loss = nn.functional.softplus(-told).mean() + nn.functional.softplus(self.judge(fake.detach())).mean()
        self.manual_backward(loss)
        two.step()
        two.zero_grad()
        self.losses.append(loss.detach())

    def configure_optimizers(self):
        return (
            torch.optim.Adam(self.maker.parameters(), lr=1e-3, betas=(0.5, 0.9)),
            torch.optim.Adam(self.judge.parameters(), lr=1e-3, betas=(0.5, 0.9)),
        )


angle = torch.rand(512) * 6.283
data = torch.utils.data.TensorDataset(torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(512, 2))
model = Gan()
trainer = L.Trainer(
    max_steps=80,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=32, shuffle=True))
tell(model, model.losses)
