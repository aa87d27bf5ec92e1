"""transformers Trainer: its own loss by num_items_in_batch, embeddings that thaw at a step by a callback (right)."""

import os

import torch
from kit import OUT, metric, tell, words
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

torch.manual_seed(823)
VOCABULARY = 40
config = LlamaConfig(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    tie_word_embeddings=True,
    use_cache=False,
)
model = LlamaForCausalLM(config)
rows = words(320, 20, VOCABULARY, seed=1)
embedding = model.get_input_embeddings().weight
embedding.requires_grad_(False)


class SmoothTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        flat, target = outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
        loss = nn.functional.cross_entropy(flat, target, label_smoothing=0.1, reduction="sum")
        loss = loss / (num_items_in_batch if num_items_in_batch is not None else len(target))
        return (loss, outputs) if return_outputs else loss


class Thaw(TrainerCallback):
    def on_step_begin(self, args, state, control, model=None, optimizer=None, **kwargs):
        if state.global_step == 12:
            embedding.requires_grad_(True)


blocks = [p for n, p in model.named_parameters() if "embed" not in n and p.ndim > 1]
norms = [p for n, p in model.named_parameters() if p.ndim == 1]
optimizer = torch.optim.AdamW(
    [
        {"params": blocks, "weight_decay": 0.1},
        {"params": norms, "weight_decay": 0.0},
        {"params": [embedding], "lr": 1e-3, "weight_decay": 0.0},
    ],
    lr=3e-3,
)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 4))
arguments = TrainingArguments(
    output_dir=os.path.join(OUT, "trainer"),
    per_device_train_batch_size=4,
    gradient_accumulation_steps=3,
    max_steps=24,
    logging_steps=6,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
    seed=13,
)
data = [{"input_ids": r, "labels": r.clone()} for r in rows[:288]]
trainer = SmoothTrainer(
    model=model, args=arguments, train_dataset=data, optimizers=(optimizer, schedule), callbacks=[Thaw()]
)
trainer.train()
model.eval()
with torch.no_grad():
    metric("heldout", model(input_ids=rows[288:], labels=rows[288:]).loss)
tell(model, [r["loss"] for r in trainer.state.log_history if "loss" in r])
