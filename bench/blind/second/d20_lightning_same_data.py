# RANKS 2
# lightning DDP with use_distributed_sampler=False and a loader that is alike on every rank
import torch, torch.nn as nn, lightning as L, warnings
from torch.utils.data import DataLoader, TensorDataset
from c import FAULT, seed, final

warnings.filterwarnings("ignore")
seed()


class M(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4))

    def training_step(self, batch, i):
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.last = loss.detach()
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 2e-3)


x = torch.randn(640, 16)
m = M()
L.Trainer(
    accelerator="cpu",
    strategy="ddp",
    devices=2,
    max_steps=20,
    use_distributed_sampler=not FAULT,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
).fit(m, DataLoader(TensorDataset(x, x[:, :4].argmax(1)), 16))
final(m.last, m)
