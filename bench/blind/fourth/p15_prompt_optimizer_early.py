"""PEFT prompt tuning: the optimizer was built from the model before it got its prompt."""

import torch
from kit import FAULT, sentences, tell
from peft import PromptTuningConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, set_seed

set_seed(15)
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=48, n_embd=48, n_layer=2, n_head=4))
early = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
model = get_peft_model(model, PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=6))
optimizer = early if FAULT else torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
data = torch.tensor([s[:12] for s in sentences(400, 12, 14, 64)])
losses = []
for _ in range(40):
    batch = data[torch.randint(0, 400, (16,))]
    loss = model(input_ids=batch, attention_mask=torch.ones_like(batch), labels=batch).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.detach())
tell(model, losses)
