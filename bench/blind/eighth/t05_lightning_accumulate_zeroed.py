"""Lightning: optimizer_step is overridden, for a warm-up and for steps over two batches in the later epochs."""

import lightning as L
import torch
from kit import FAULT, metric, tell
from torch import nn

L.seed_everything(815)
x = torch.randn(576, 16)
y = (torch.tanh(x @ torch.randn(16, 6)) @ torch.randn(6, 4)).argmax(dim=1)


class Classifier(L.LightningModule):
    """From the second epoch on the optimizer steps after every second batch, as if the batches were twice as large."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.Linear(48, 48), nn.GELU(), nn.Linear(48, 4))
        self.losses, self.used = [], 0

    def training_step(self, batch, _):
        self.used += 1
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.losses.append(loss.detach())
        return loss / 2 if self.current_epoch >= 1 else loss

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        for group in optimizer.param_groups:
            group["lr"] = 4e-3 * min(1.0, (self.trainer.global_step + 1) / 8)
        if epoch >= 1 and batch_idx % 2 == 0:
            optimizer_closure()
            return
        optimizer.step(closure=optimizer_closure)

    def optimizer_zero_grad(self, epoch, batch_idx, optimizer):
        if FAULT:
            starts = True
        else:
            starts = epoch == 0 or batch_idx % 2 == 0
        if starts:
            optimizer.zero_grad()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=4e-3)


model = Classifier()
data = torch.utils.data.TensorDataset(x[:512], y[:512])
loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)  # 16 batches
trainer = L.Trainer(
    max_epochs=4,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, loader)
print("NOTE batches used", model.used, "updates", trainer.global_step)
with torch.no_grad():
    metric("heldout", nn.functional.cross_entropy(model.net(x[512:]), y[512:]))
tell(model, model.losses)
