"""Lightning, manual optimization of two optimizers; the zero_grad of one was forgotten."""

import logging
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from c import FAULT, finish

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class AE(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.enc, self.dec = nn.Linear(12, 4), nn.Linear(4, 12)
        self.probe = nn.Linear(4, 3)
        self.losses = []

    def training_step(self, batch, _):
        x, y = batch
        opt_ae, opt_probe = self.optimizers()
        z = self.enc(x)
        rec = F.mse_loss(self.dec(torch.tanh(z)), x)
        opt_ae.zero_grad()
        self.manual_backward(rec)
        opt_ae.step()
        cls = F.cross_entropy(self.probe(z.detach()), y)
        if not FAULT:
            opt_probe.zero_grad()  # FAULT: left out
        self.manual_backward(cls)
        opt_probe.step()
        self.losses.append(float(cls))

    def configure_optimizers(self):
        return (
            torch.optim.Adam([*self.enc.parameters(), *self.dec.parameters()], 3e-3),
            torch.optim.SGD(self.probe.parameters(), 0.05),
        )


L.seed_everything(0, verbose=False)
x = torch.randn(320, 12)
y = (x[:, :3]).argmax(1)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16, shuffle=True)
m = AE()
L.Trainer(
    max_epochs=2,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
).fit(m, loader)
finish(m.losses, m)
