"""BERT MLM, Trainer: the labels are copied after the tokens were replaced by [MASK]."""

import torch
from kit import FAULT, arguments, sentences, told
from transformers import BertConfig, BertForMaskedLM, Trainer, set_seed

set_seed(4)
rows = [{"input_ids": s} for s in sentences(400, 8, 20, 64)]
MASK = 3


def collate(batch):
    wide = max(len(r["input_ids"]) for r in batch)
    ids = torch.tensor([r["input_ids"] + [0] * (wide - len(r["input_ids"])) for r in batch])
    chosen = (torch.rand(ids.shape) < 0.2) & (ids != 0)
    if FAULT:
        ids[chosen] = MASK
        labels = ids.clone()
    else:
        labels = ids.clone()
        ids[chosen] = MASK
    labels[~chosen] = -100
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}


config = BertConfig(
    vocab_size=64,
    hidden_size=48,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=32,
)
trainer = Trainer(model=BertForMaskedLM(config), args=arguments(), train_dataset=rows, data_collator=collate)
trainer.train()
told(trainer)
