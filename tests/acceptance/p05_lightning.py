"""A Lightning Trainer in true float16 with a sanity check, validation inside the epoch and accumulation."""

import sys
import tempfile

import lightning
import torch
from overflowing import ROWS, Classifier, Rows
from torch import nn

BAD = None if "--healthy" in sys.argv else (3, 1)
STEPS, ACCUMULATE = 6, 2
torch.manual_seed(0)
torch.set_num_threads(1)


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Classifier()

    def training_step(self, batch, index):
        loss = nn.functional.cross_entropy(self.net(batch["x"]).float(), batch["labels"])
        self.last = loss.item()
        return loss

    def validation_step(self, batch, index):
        self.log("validation", nn.functional.cross_entropy(self.net(batch["x"]).float(), batch["labels"]))

    def on_before_optimizer_step(self, optimizer):
        norm = torch.nn.utils.get_total_norm([p.grad for p in self.parameters()])
        print(f"step {self.global_step} loss {self.last:.6f} grad {norm.item():.6f}")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


trainer = lightning.Trainer(
    accelerator="cpu",
    precision="16-true",
    max_steps=STEPS,
    accumulate_grad_batches=ACCUMULATE,
    val_check_interval=4,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    default_root_dir=tempfile.mkdtemp(),
)
trainer.fit(
    Module(),
    torch.utils.data.DataLoader(Rows(STEPS, ACCUMULATE, BAD), batch_size=ROWS),
    torch.utils.data.DataLoader(Rows(2, 1, None), batch_size=ROWS),
)
