"""A small GAN in Lightning with manual optimization; both optimizers are cleared where the step begins."""

import lightning as L
import torch
from kit import FAULT, metric, tell
from torch import nn

L.seed_everything(304)
angle = torch.rand(1024) * 6.2832
real = torch.stack([angle.cos(), angle.sin(), 0.3 * (2 * angle).cos()], dim=1) + 0.02 * torch.randn(1024, 3)


class Gan(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 3))
        self.critic = nn.Sequential(nn.Linear(3, 48), nn.LeakyReLU(0.2), nn.Linear(48, 1))
        self.losses = []

    def training_step(self, batch, _):
        opt_g, opt_d = self.optimizers()
        opt_g.zero_grad()
        opt_d.zero_grad()
        sample = batch[0]
        ones, zeros = torch.ones(len(sample), 1), torch.zeros(len(sample), 1)
        bce = nn.functional.binary_cross_entropy_with_logits
        fake = self.generator(torch.randn(len(sample), 6))

        loss_g = bce(self.critic(fake), ones)
        self.manual_backward(loss_g)
        opt_g.step()

        if not FAULT:
            opt_d.zero_grad()
        loss_d = (bce(self.critic(sample), ones) + bce(self.critic(fake.detach()), zeros)) / 2
        self.manual_backward(loss_d)
        opt_d.step()
        self.losses += [loss_g.detach(), loss_d.detach()]

    def configure_optimizers(self):
        opt_g = torch.optim.Adam(self.generator.parameters(), lr=2e-3, betas=(0.5, 0.99))
        opt_d = torch.optim.Adam(self.critic.parameters(), lr=2e-3, betas=(0.5, 0.99))
        return [opt_g, opt_d]


model = Gan()
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(real), batch_size=64, shuffle=True)
trainer = L.Trainer(
    max_epochs=4,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, loader)
with torch.no_grad():
    made = model.generator(torch.randn(2000, 6, generator=torch.Generator().manual_seed(9)))
    metric("moment_gap", (made.T @ made / 2000 - real.T @ real / 1024).norm())
tell(model, model.losses)
