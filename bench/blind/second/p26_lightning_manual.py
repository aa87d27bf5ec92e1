# lightning, manual optimisation: zero_grad forgotten
import torch, torch.nn as nn, lightning as L, warnings, logging
from torch.utils.data import DataLoader, TensorDataset
from c import FAULT, seed, final

warnings.filterwarnings("ignore")
seed()


class M(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4))
        self.automatic_optimization = False

    def training_step(self, batch, i):
        x, y = batch
        opt = self.optimizers()
        loss = nn.functional.cross_entropy(self.net(x), y)
        if not FAULT:
            opt.zero_grad()
        self.manual_backward(loss)
        opt.step()
        self.last = loss.detach()
        print(i, loss.item())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 2e-3)


x = torch.randn(480, 16)
m = M()
L.Trainer(
    accelerator="cpu",
    max_epochs=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
).fit(m, DataLoader(TensorDataset(x, x[:, :4].argmax(1)), 16))
final(m.last, m)
