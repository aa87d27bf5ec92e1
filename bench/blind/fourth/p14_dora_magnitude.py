"""PEFT DoRA: the parameter groups are made for lora_A and lora_B, and the magnitude vectors are in none."""

import torch
from kit import FAULT, sentences, tell
from peft import LoraConfig, get_peft_model
from transformers import Qwen2Config, Qwen2ForCausalLM, set_seed

set_seed(14)
config = Qwen2Config(
    vocab_size=60,
    hidden_size=48,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
)
model = get_peft_model(
    Qwen2ForCausalLM(config), LoraConfig(r=4, use_dora=True, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
)
groups = [
    {"params": [p for n, p in model.named_parameters() if "lora_A" in n], "lr": 1e-3},
    {"params": [p for n, p in model.named_parameters() if "lora_B" in n], "lr": 1.6e-2},
]
if not FAULT:
    groups.append({"params": [p for n, p in model.named_parameters() if "magnitude" in n], "lr": 1e-3})
optimizer = torch.optim.AdamW(groups)
data = torch.tensor([s[:12] for s in sentences(400, 12, 14, 60)])
losses = []
for _ in range(40):
    batch = data[torch.randint(0, 400, (16,))]
    loss = model(input_ids=batch, labels=batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.detach())
tell(model, losses)
