"""A Trainer of Transformers: `python hf.py FOLDER [WORD ...]`.

Words beside those of parts.py: compiled, undivided (the model takes what Trainer counts and does not use it), shared (a
loader that nobody splits over ranks), unwrapped (no DDP).
"""

import sys
from typing import Any

import parts
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

torch.manual_seed(0)
parts.plant()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = parts.net()

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        out = self.net(x)
        return {"loss": functional.cross_entropy(out, labels), "logits": out}


class Taking(Model):
    def forward(self, x: Tensor, labels: Tensor, **kwargs: Any) -> dict[str, Tensor]:
        return super().forward(x, labels)


class Ours(Trainer):
    def get_train_dataloader(self) -> DataLoader[Any]:
        if "shared" in parts.WORDS:
            return DataLoader(self.train_dataset, self._train_batch_size)
        return super().get_train_dataloader()


arguments = TrainingArguments(
    sys.argv[1],
    max_steps=6,
    per_device_train_batch_size=8,
    learning_rate=1e-2,
    save_strategy="no",
    logging_steps=100,
    report_to=[],
    use_cpu=True,
    seed=3,
    disable_tqdm=True,
    torch_compile="compiled" in parts.WORDS,
)
trainer = Ours(Taking() if "undivided" in parts.WORDS else Model(), arguments, train_dataset=parts.Samples())
if "unwrapped" in parts.WORDS:
    trainer.accelerator.prepare_model = lambda model, *args, **kwargs: model
trainer.train()
