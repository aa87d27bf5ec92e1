"""Whisper, Trainer: the speech collator pads the labels with the pad token and forgets to turn it into -100."""

import torch
from kit import FAULT, arguments, sentences, told
from transformers import Trainer, WhisperConfig, WhisperForConditionalGeneration, set_seed

set_seed(6)
rows = [{"labels": s + [1], "seed": i} for i, s in enumerate(sentences(200, 4, 20, 50))]


def collate(batch):
    wide = max(len(r["labels"]) for r in batch)
    labels = torch.tensor([r["labels"] + [0] * (wide - len(r["labels"])) for r in batch])
    sound = torch.stack([torch.randn(16, 64, generator=torch.Generator().manual_seed(r["seed"])) for r in batch])
    if not FAULT:
        labels = labels.masked_fill(labels == 0, -100)
    return {"input_features": sound, "labels": labels}


config = WhisperConfig(
    vocab_size=50,
    num_mel_bins=16,
    d_model=32,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=64,
    decoder_ffn_dim=64,
    max_source_positions=32,
    max_target_positions=32,
    pad_token_id=0,
    bos_token_id=2,
    eos_token_id=1,
    decoder_start_token_id=2,
)
trainer = Trainer(
    model=WhisperForConditionalGeneration(config),
    args=arguments(remove_unused_columns=False),
    train_dataset=rows,
    data_collator=collate,
)
trainer.train()
told(trainer)
