"""ViT, Trainer: mixup mixes the images with one permutation and the labels with another."""

import torch
from kit import FAULT, arguments, told
from transformers import Trainer, ViTConfig, ViTForImageClassification, set_seed

set_seed(5)
means = torch.randn(6, 3, 16, 16)
rows = [{"x": means[i % 6] + 0.5 * torch.randn(3, 16, 16), "y": i % 6} for i in range(320)]


def collate(batch):
    x = torch.stack([r["x"] for r in batch])
    y = torch.nn.functional.one_hot(torch.tensor([r["y"] for r in batch]), 6).float()
    share = torch.distributions.Beta(0.8, 0.8).sample()
    order = torch.randperm(len(batch))
    x = share * x + (1 - share) * x[order]
    if FAULT:
        order = torch.randperm(len(batch))
    return {"pixel_values": x, "soft": share * y + (1 - share) * y[order]}


class Mixed(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        out = model(pixel_values=inputs["pixel_values"])
        loss = torch.nn.functional.cross_entropy(out.logits, inputs["soft"])
        return (loss, out) if return_outputs else loss


config = ViTConfig(
    image_size=16,
    patch_size=4,
    hidden_size=48,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_labels=6,
)
trainer = Mixed(
    model=ViTForImageClassification(config),
    args=arguments(remove_unused_columns=False),
    train_dataset=rows,
    data_collator=collate,
)
trainer.train()
told(trainer)
