"""HF Trainer: compute_loss is overridden and forgets num_items_in_batch (accumulation 4)."""

import os
import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from c import FAULT, finish

torch.manual_seed(0)
cfg = LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    max_position_embeddings=32,
)
model = LlamaForCausalLM(cfg)
g = torch.Generator().manual_seed(1)
data = []
for _ in range(400):
    s = int(torch.randint(0, 64, (1,), generator=g))
    ids = torch.tensor([(s * 5 + 3 * i) % 64 for i in range(12)])
    data.append({"input_ids": ids, "labels": ids.clone()})


class FocalTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        out = model(**inputs)
        logits = out.logits[:, :-1].flatten(0, 1)
        ce = F.cross_entropy(logits, labels[:, 1:].flatten(), reduction="none")
        loss = ((1 - torch.exp(-ce)) ** 1.0 * ce).sum()
        n = (
            labels[:, 1:].numel() if FAULT or num_items_in_batch is None else num_items_in_batch
        )  # FAULT: mean of the micro-batch, Trainer does not divide
        loss = loss / n
        return (loss, out) if return_outputs else loss


args = TrainingArguments(
    output_dir=os.environ["BLIND_FOLDER"],
    max_steps=30,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=4,
    learning_rate=1e-3,
    max_grad_norm=0.0,
    logging_steps=1,
    report_to=[],
    save_strategy="no",
    use_cpu=True,
    disable_tqdm=True,
    optim="sgd",
)
t = FocalTrainer(model=model, args=args, train_dataset=data)
t.train()
finish([r["loss"] for r in t.state.log_history if "loss" in r], model)
