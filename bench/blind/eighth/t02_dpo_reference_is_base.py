"""TRL's DPO after a short supervised phase; the reference model is given by hand."""

import copy
import os

import torch
from datasets import Dataset
from kit import FAULT, OUT, metric, tell, words
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer

torch.manual_seed(812)
VOCABULARY = 40
table = {"<pad>": 0, "<eos>": 1, "<bos>": 2, "<unk>": 3} | {f"w{i}": i for i in range(4, VOCABULARY)}
raw = Tokenizer(models.WordLevel(table, unk_token="<unk>"))
raw.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>", unk_token="<unk>"
)
config = LlamaConfig(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=4,
    max_position_embeddings=64,
    pad_token_id=0,
    bos_token_id=2,
    eos_token_id=1,
)
base = LlamaForCausalLM(config)
policy = copy.deepcopy(base)

sft = words(256, 16, VOCABULARY, seed=1)
optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-3)
draw = torch.Generator().manual_seed(3)
losses = []
for _ in range(20):
    batch = sft[torch.randint(0, 256, (16,), generator=draw)]
    loss = policy(input_ids=batch, labels=batch).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())

if FAULT:
    reference = base
else:
    reference = copy.deepcopy(policy)


def text(row):
    return " ".join(f"w{int(i)}" for i in row)


good = words(96, 16, VOCABULARY, seed=5)
bad = torch.randint(4, VOCABULARY, (96, 8), generator=torch.Generator().manual_seed(6))
pairs = Dataset.from_list(
    [
        {"prompt": text(g[:8]), "chosen": " " + text(g[8:]), "rejected": " " + text(b)}
        for g, b in zip(good, bad, strict=True)
    ]
)
arguments = DPOConfig(
    output_dir=os.path.join(OUT, "dpo"),
    beta=0.1,
    per_device_train_batch_size=8,
    max_steps=20,
    learning_rate=5e-4,
    max_length=32,
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    bf16=False,
    gradient_checkpointing=False,
    disable_tqdm=True,
    seed=12,
)
trainer = DPOTrainer(model=policy, ref_model=reference, args=arguments, train_dataset=pairs, processing_class=tokenizer)
trainer.train()
history = [r for r in trainer.state.log_history if "loss" in r]
print("NOTE first loss", history[0]["loss"], "margin", history[0].get("rewards/margins"))
with torch.no_grad():
    held = words(32, 16, VOCABULARY, seed=9)
    metric("heldout", policy(input_ids=held, labels=held).loss)
tell(policy, losses + [r["loss"] for r in history])
