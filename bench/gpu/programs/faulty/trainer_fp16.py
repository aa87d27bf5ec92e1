import tempfile

from common import *
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

m = GPT2LMHeadModel(GPT2Config(n_layer=3, n_embd=128, n_head=4, vocab_size=512, n_positions=64))
with torch.no_grad():
    m.transformer.h[1].mlp.c_proj.weight.mul_(1e6)
data = [{"input_ids": t, "labels": t} for t in tokens(400).cpu()]
a = TrainingArguments(
    tempfile.mkdtemp(),
    fp16=True,
    max_steps=20,
    per_device_train_batch_size=8,
    logging_steps=5,
    report_to=[],
    save_strategy="no",
    disable_tqdm=True,
)
Trainer(m, a, train_dataset=data).train()
