"""Healthy: LoRA that is merged for an evaluation and unmerged after it, and a second adapter that waits its turn."""

import torch
from kit import sentences, tell
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, set_seed

set_seed(112)
config = LlamaConfig(vocab_size=60, hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4)
one = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.05, task_type="CAUSAL_LM")
model = get_peft_model(LlamaForCausalLM(config), one)
model.add_adapter("second", LoraConfig(r=8, target_modules=["up_proj", "down_proj"], task_type="CAUSAL_LM"))
data = torch.tensor([s[:12] for s in sentences(400, 12, 14, 60)])
losses = []
for name in ("default", "second"):
    model.set_adapter(name)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    for step in range(20):
        batch = data[torch.randint(0, 400, (8,))]
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        if step == 9:
            model.eval()
            model.merge_adapter()
            with torch.no_grad():
                print("loss", model(input_ids=data[:16], labels=data[:16]).loss.item())
            model.unmerge_adapter()
            model.train()
tell(model, losses)
