"""Mixtral, Trainer with 4 micro-batches: the own loss is a mean of each, which nobody divides by 4."""

import torch
from kit import FAULT, arguments, sentences, told
from transformers import MixtralConfig, MixtralForCausalLM, Trainer, set_seed

set_seed(7)
rows = [{"input_ids": s[:12]} for s in sentences(600, 12, 14, 64)]


def collate(batch):
    ids = torch.tensor([r["input_ids"] for r in batch])
    return {"input_ids": ids, "labels": ids}


class Own(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        out = model(**inputs)
        logits = out.logits[:, :-1].flatten(0, 1)
        if FAULT or num_items_in_batch is None:
            loss = torch.nn.functional.cross_entropy(logits, labels[:, 1:].flatten())
        else:
            loss = torch.nn.functional.cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum")
            loss = loss / num_items_in_batch
        return (loss, out) if return_outputs else loss


config = MixtralConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    num_local_experts=4,
    num_experts_per_tok=2,
    max_position_embeddings=32,
)
trainer = Own(
    model=MixtralForCausalLM(config),
    args=arguments(gradient_accumulation_steps=4, per_device_train_batch_size=4),
    train_dataset=rows,
    data_collator=collate,
)
trainer.train()
told(trainer)
