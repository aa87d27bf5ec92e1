"""Healthy: ViT with a rate for each depth, no decay on norms and biases, stochastic depth by hand, mixup."""

import torch
from kit import tell
from transformers import ViTConfig, ViTForImageClassification, get_cosine_schedule_with_warmup, set_seed

set_seed(102)
config = ViTConfig(
    image_size=16,
    patch_size=4,
    hidden_size=48,
    intermediate_size=96,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_labels=6,
    hidden_dropout_prob=0.1,
)
model = ViTForImageClassification(config)
groups = []
for name, p in model.named_parameters():
    part = name.split(".")
    depth = int(part[part.index("layer") + 1]) + 1 if "layer" in part else (0 if "embeddings" in name else 5)
    groups.append({"params": [p], "lr": 2e-3 * 0.7 ** (5 - depth), "weight_decay": 0.05 if p.ndim > 1 else 0.0})
optimizer = torch.optim.AdamW(groups)
schedule = get_cosine_schedule_with_warmup(optimizer, 5, 40)
means = torch.randn(6, 3, 16, 16)
losses = []
for _ in range(40):
    y = torch.randint(0, 6, (16,))
    x = means[y] + 0.5 * torch.randn(16, 3, 16, 16)
    share = torch.distributions.Beta(0.8, 0.8).sample()
    order = torch.randperm(16)
    logits = model(pixel_values=share * x + (1 - share) * x[order]).logits
    loss = share * torch.nn.functional.cross_entropy(logits, y) + (1 - share) * torch.nn.functional.cross_entropy(
        logits, y[order]
    )
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad(set_to_none=True)
    losses.append(loss.detach())
tell(model, losses)
