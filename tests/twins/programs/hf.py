"""A Trainer of Transformers that saves every four steps.

    python hf.py FOLDER [FAULT]

Faults leave something out when a checkpoint is loaded: optimizer, scheduler, rng, data, weights; `step` counts one too
many.
"""

import sys
from pathlib import Path

import torch
from torch import nn
from transformers import Trainer, TrainerState, TrainingArguments

folder, faults = sys.argv[1], set(sys.argv[2:])


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.net(x)
        return {"loss": nn.functional.mse_loss(out, labels), "logits": out}


class Faulty(Trainer):
    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        for name, part in (("optimizer", self.optimizer), ("scheduler", self.lr_scheduler)):
            if name not in faults:
                part.load_state_dict(torch.load(Path(checkpoint, f"{name}.pt"), weights_only=True))

    def _load_from_checkpoint(self, *args: object, **kwargs: object) -> None:
        if "weights" not in faults:
            super()._load_from_checkpoint(*args, **kwargs)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if "rng" not in faults:
            super()._load_rng_state(checkpoint)


def one_more(path: str) -> TrainerState:
    state = load(path)
    state.global_step += 1
    return state


load = TrainerState.load_from_json
if "step" in faults:
    TrainerState.load_from_json = staticmethod(one_more)
torch.manual_seed(0)
data = [{"x": torch.randn(8), "labels": torch.randn(1)} for _ in range(64)]
arguments = TrainingArguments(
    folder,
    max_steps=40,
    per_device_train_batch_size=4,
    learning_rate=1e-2,
    warmup_steps=6,
    save_steps=4,
    logging_steps=100,
    report_to=[],
    use_cpu=True,
    seed=3,
    disable_tqdm=True,
    ignore_data_skip="data" in faults,
)
Faulty(Model(), arguments, train_dataset=data).train()
