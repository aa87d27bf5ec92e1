"""Llama: trained 15 steps with rope_theta 10000, resumed by a script whose configuration says 500000."""

import torch
from kit import FAULT, OUT, sentences, tell
from transformers import LlamaConfig, LlamaForCausalLM, set_seed

set_seed(24)
data = torch.tensor([s[:48] for s in sentences(400, 48, 50, 64)])


def build(theta):
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
    )
    model = LlamaForCausalLM(config)
    return model, torch.optim.AdamW(model.parameters(), lr=3e-3)


def train(model, optimizer, steps, losses):
    for _ in range(steps):
        batch = data[torch.randint(0, 400, (8,))]
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())


losses = []
model, optimizer = build(10000.0)
train(model, optimizer, 20, losses)
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{OUT}/rope.pt")
again, optimizer = build(500000.0 if FAULT else 10000.0)
saved = torch.load(f"{OUT}/rope.pt")
again.load_state_dict(saved["model"])
optimizer.load_state_dict(saved["optimizer"])
train(again, optimizer, 25, losses)
tell(again, losses)
