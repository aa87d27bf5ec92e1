"""Healthy: BERT classifier, lower layers and embeddings frozen on purpose, label smoothing, Trainer."""

import torch
from kit import arguments, sentences, told
from transformers import BertConfig, BertForSequenceClassification, Trainer, set_seed

set_seed(101)
rows = [{"input_ids": s, "labels": (s[2] + s[4]) % 3} for s in sentences(300, 8, 20, 64)]
config = BertConfig(
    vocab_size=64,
    hidden_size=48,
    intermediate_size=96,
    num_hidden_layers=3,
    num_attention_heads=4,
    max_position_embeddings=32,
    num_labels=3,
)
model = BertForSequenceClassification(config)
for p in [*model.bert.embeddings.parameters(), *model.bert.encoder.layer[0].parameters()]:
    p.requires_grad_(False)


def collate(batch):
    wide = max(len(r["input_ids"]) for r in batch)
    ids = torch.tensor([r["input_ids"] + [0] * (wide - len(r["input_ids"])) for r in batch])
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": torch.tensor([r["labels"] for r in batch])}


trainer = Trainer(
    model=model,
    args=arguments(label_smoothing_factor=0.1, max_grad_norm=0.5, warmup_steps=5),
    train_dataset=rows,
    data_collator=collate,
)
trainer.train()
told(trainer)
