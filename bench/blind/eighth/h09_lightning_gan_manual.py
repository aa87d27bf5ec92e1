"""Lightning with manual optimization: a critic that steps three times for each step of the generator (right)."""

import lightning as L
import torch
from kit import metric, tell
from torch import nn

L.seed_everything(824)
angle = 6.283 * torch.rand(480)
real = torch.stack([angle.cos(), angle.sin()], dim=1) + 0.05 * torch.randn(480, 2)


class Gan(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.make = nn.Sequential(nn.Linear(4, 32), nn.LeakyReLU(0.2), nn.Linear(32, 2))
        self.judge = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
        self.losses = []

    def training_step(self, batch, batch_idx):
        maker, judge = self.optimizers()
        (points,) = batch
        noise = torch.randn(len(points), 4)
        self.toggle_optimizer(judge)
        with torch.no_grad():
            fake = self.make(noise)
        loss = nn.functional.softplus(self.judge(fake)).mean() + nn.functional.softplus(-self.judge(points)).mean()
        judge.zero_grad()
        self.manual_backward(loss)
        judge.step()
        self.untoggle_optimizer(judge)
        if batch_idx % 3 == 2:
            self.toggle_optimizer(maker)
            loss = nn.functional.softplus(-self.judge(self.make(noise))).mean()
            maker.zero_grad()
            self.manual_backward(loss)
            self.clip_gradients(maker, gradient_clip_val=1.0, gradient_clip_algorithm="norm")
            maker.step()
            self.untoggle_optimizer(maker)
            self.losses.append(loss.detach())

    def on_train_epoch_end(self):
        for schedule in self.lr_schedulers():
            schedule.step()

    def configure_optimizers(self):
        maker = torch.optim.Adam(self.make.parameters(), lr=2e-3, betas=(0.5, 0.99))
        judge = torch.optim.Adam(self.judge.parameters(), lr=2e-3, betas=(0.5, 0.99))
        decay = [torch.optim.lr_scheduler.ExponentialLR(o, 0.8) for o in (maker, judge)]
        return [maker, judge], decay


model = Gan()
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(real), batch_size=32, shuffle=True, drop_last=True)
trainer = L.Trainer(
    max_epochs=3,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, loader)
with torch.no_grad():
    metric("radius", model.make(torch.randn(64, 4)).norm(dim=1).mean())
tell(model, model.losses)
