"""Lightning: distillation; the teacher is a part of the module, so that it goes to the device with it."""

import lightning as L
import torch
from kit import FAULT, metric, tell
from torch import nn

L.seed_everything(26)
F = nn.functional
x = torch.randn(704, 16)
y = (x @ torch.randn(16, 6) + 0.5 * torch.randn(704, 6)).argmax(dim=1)

teacher = nn.Sequential(nn.Linear(16, 96), nn.ReLU(), nn.Linear(96, 6))
pretraining = torch.optim.Adam(teacher.parameters(), lr=1e-2)
for _ in range(30):
    loss = F.cross_entropy(teacher(x[:640]), y[:640])
    pretraining.zero_grad()
    loss.backward()
    pretraining.step()


class Distiller(L.LightningModule):
    def __init__(self, teacher):
        super().__init__()
        self.teacher = teacher
        self.student = nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 6))
        self.losses = []
        if not FAULT:
            self.teacher.requires_grad_(False)

    def training_step(self, batch, _):
        soft = F.softmax(self.teacher(batch[0]) / 2, dim=-1)
        loss = F.kl_div(F.log_softmax(self.student(batch[0]) / 2, dim=-1), soft, reduction="batchmean") * 4
        self.losses.append(loss.detach())
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=5e-3)


model = Distiller(teacher)
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
    metric("accuracy of the teacher", (teacher(x[640:]).argmax(1) == y[640:]).float().mean())
    metric("accuracy of the student", (model.student(x[640:]).argmax(1) == y[640:]).float().mean())
tell(model, model.losses)
