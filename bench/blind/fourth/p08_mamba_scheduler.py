"""Mamba, an accelerate loop with 4 micro-batches: the scheduler is stepped at each of them."""

import torch
from accelerate import Accelerator
from kit import FAULT, sentences, tell
from transformers import MambaConfig, MambaForCausalLM, get_linear_schedule_with_warmup, set_seed

set_seed(8)
accelerator = Accelerator(gradient_accumulation_steps=4, cpu=True)
model = MambaForCausalLM(MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, state_size=8))
data = torch.tensor([s[:12] for s in sentences(640, 12, 14, 64)])
loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
steps = 40
schedule = get_linear_schedule_with_warmup(optimizer, 4, steps)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
losses = []
for batch in loader:
    with accelerator.accumulate(model):
        loss = model(input_ids=batch, labels=batch).loss
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if FAULT or accelerator.sync_gradients:
            schedule.step()
        optimizer.zero_grad()
    losses.append(loss.detach())
tell(accelerator.unwrap_model(model), losses)
