"""A Transformers Trainer with float16 autocast, accumulation, clipping and evaluation during training."""

import sys
import tempfile

import torch
from overflowing import ROWS, Classifier, Rows
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

BAD = None if "--healthy" in sys.argv else (4, 1)
STEPS, ACCUMULATE = 6, 2
torch.manual_seed(0)
torch.set_num_threads(1)


class WithLoss(Classifier):
    def forward(self, x, labels=None):
        with torch.autocast("cpu", torch.float16):  # fp16=True is without effect on a CPU
            logits = super().forward(x)
        return {"loss": nn.functional.cross_entropy(logits.float(), labels), "logits": logits}


class Say(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "grad_norm" in (logs or {}):
            print(f"step {state.global_step - 1} loss {float(logs['loss']):.6f} grad {float(logs['grad_norm']):.6f}")


arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    use_cpu=True,
    max_steps=STEPS,
    per_device_train_batch_size=ROWS,
    gradient_accumulation_steps=ACCUMULATE,
    learning_rate=1e-2,
    logging_steps=1,
    logging_nan_inf_filter=False,
    eval_strategy="steps",
    eval_steps=2,
    train_sampling_strategy="sequential",
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
)
trainer = Trainer(
    model=WithLoss(),
    args=arguments,
    train_dataset=Rows(STEPS, ACCUMULATE, BAD),
    eval_dataset=Rows(2, 1, None),
    callbacks=[Say()],
)
trainer.train()
