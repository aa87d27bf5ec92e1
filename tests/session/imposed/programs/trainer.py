"""A tiny GPT-2 under the Transformers Trainer: a worker loads the data, warm-up, weight decay. Argument: seed."""

import sys
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.set_num_threads(1)
torch.manual_seed(int(sys.argv[1]))
model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0.0,
                                   embd_pdrop=0.0, attn_pdrop=0.0))  # fmt: skip
draw = torch.Generator().manual_seed(0)
rows = [{"input_ids": ids, "labels": ids} for ids in torch.randint(32, (32, 8), generator=draw)]


class Told(Trainer):
    def log(self, logs, *args, **kwargs):
        if "loss" in logs:
            print(f"rate {logs['learning_rate']:g}", flush=True)


arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(), use_cpu=True, max_steps=6, per_device_train_batch_size=2, learning_rate=1e-2,
    warmup_steps=3, weight_decay=0.1, logging_steps=1, save_strategy="no", report_to="none", disable_tqdm=True,
    dataloader_num_workers=1, seed=int(sys.argv[1]), data_seed=1,
)  # fmt: skip
Told(model=model, args=arguments, train_dataset=rows).train()
print("trained", flush=True)
