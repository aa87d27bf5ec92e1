# Lightning: blocks in a plain list: not registered, not in the optimizer, never trained
from mini import *
import lightning as L, logging

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class M(L.LightningModule):
    def __init__(s):
        super().__init__()
        s.inp, s.head = nn.Linear(16, 32), nn.Linear(32, 5)
        ls = [nn.Linear(32, 32) for _ in range(3)]
        s.layers = ls if FAULT else nn.ModuleList(ls)

    def training_step(s, b, i):
        h = s.inp(b[0])
        for l in s.layers:
            h = torch.relu(l(h))
        loss = F.cross_entropy(s.head(h), b[1])
        s.last = loss.detach()
        return loss

    def configure_optimizers(s):
        return torch.optim.Adam(s.parameters(), 3e-3)


seed()
dl = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*blobs(1920)), 32, shuffle=True)
m = M()
L.Trainer(
    max_epochs=1,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
).fit(m, dl)
done(m, m.last)
