from common import *
import lightning as L


class Lit(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.m = GPT()

    def training_step(self, b, i):
        loss = lm_loss(self.m(b), b)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        o = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return [o], [torch.optim.lr_scheduler.StepLR(o, 1)]


dl = torch.utils.data.DataLoader([t for t in tokens(240).cpu()], batch_size=8)
t = L.Trainer(
    max_epochs=1,
    precision="16-mixed",
    accelerator="gpu" if D == "cuda" else "cpu",
    devices=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    gradient_clip_val=1.0,
)
l = Lit()
t.fit(l, dl)
done(l)
