"""T5, Trainer: the collator gives the labels to the decoder as they are, not shifted right."""

import torch
from kit import FAULT, arguments, sentences, told
from transformers import T5Config, T5ForConditionalGeneration, Trainer, set_seed

set_seed(3)
rows = [{"source": s, "target": s[::-1] + [1]} for s in sentences(300, 5, 12, 48)]


def collate(batch):
    def padded(key, fill):
        wide = max(len(r[key]) for r in batch)
        return torch.tensor([r[key] + [fill] * (wide - len(r[key])) for r in batch])

    ids, labels = padded("source", 0), padded("target", -100)
    out = {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}
    decoder = labels.masked_fill(labels == -100, 0)
    if not FAULT:
        decoder = torch.cat([torch.zeros_like(decoder[:, :1]), decoder[:, :-1]], dim=1)
    out["decoder_input_ids"] = decoder
    return out


config = T5Config(
    vocab_size=48, d_model=48, d_kv=12, d_ff=96, num_layers=2, num_heads=4, decoder_start_token_id=0, pad_token_id=0
)
trainer = Trainer(
    model=T5ForConditionalGeneration(config),
    args=arguments(remove_unused_columns=False),
    train_dataset=rows,
    data_collator=collate,
)
trainer.train()
told(trainer)
