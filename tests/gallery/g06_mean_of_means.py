"""Accumulation divides by the number of micro-batches: labels of short ones weigh more than those of long ones."""

import sys

import torch
from torch import nn

HEALTHY = "--healthy" in sys.argv
BAD_STEP = 4  # from here on sequences are of different lengths; until then all are full
N_MICRO, N_ROWS, LENGTH, VOCABULARY = 4, 8, 16, 12
torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Embedding(VOCABULARY, 24), nn.Linear(24, 48), nn.GELU(), nn.Linear(48, VOCABULARY))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


def batch(n_valid):
    """Rows that count on by one or by three: how short ones go on is not how long ones do."""
    start = torch.randint(VOCABULARY, (N_ROWS, 1))
    step = 1 if n_valid > LENGTH // 2 else 3
    tokens = (start + step * torch.arange(LENGTH + 1)) % VOCABULARY
    labels = tokens[:, 1:].clone()
    labels[:, n_valid:] = -100
    return tokens[:, :-1], labels


for step in range(8):
    lengths = [LENGTH] * N_MICRO if step < BAD_STEP else [1, LENGTH, LENGTH, 2]
    batches = [batch(n) for n in lengths]
    n_labels = sum((labels != -100).sum() for _, labels in batches)
    total = 0.0
    for tokens, labels in batches:
        logits = model(tokens).flatten(0, 1)
        if HEALTHY:
            loss = nn.functional.cross_entropy(logits, labels.flatten(), reduction="sum") / n_labels
        else:
            loss = nn.functional.cross_entropy(logits, labels.flatten()) / N_MICRO  # <- fault
        loss.backward()
        total += loss.item()
    grad = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {total:.6f} grad {grad.item():.6f}", flush=True)
