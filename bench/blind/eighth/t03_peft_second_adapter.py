"""PEFT: a first LoRA adapter is trained on one task, then a second one is added and trained on the next."""

import torch
from kit import FAULT, metric, tell, words
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(813)
VOCABULARY = 40
config = LlamaConfig(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=4,
    max_position_embeddings=64,
    use_cache=False,
)
base = LlamaForCausalLM(config)
lora = {"r": 4, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj", "up_proj", "down_proj"], "lora_dropout": 0.05}
model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **lora), adapter_name="first")


def make_optimizer(model):
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)


def train(model, optimizer, data, steps, seed):
    draw = torch.Generator().manual_seed(seed)
    losses = []
    model.train()
    for _ in range(steps):
        batch = data[torch.randint(0, len(data), (16,), generator=draw)]
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
        optimizer.step()
        losses.append(loss.detach())
    return losses


def evaluate(model, data):
    model.eval()
    with torch.no_grad():
        return model(input_ids=data, labels=data).loss


first_task = words(256, 18, VOCABULARY, seed=1)
second_task = words(256, 18, VOCABULARY, seed=2).flip(1)
optimizer = make_optimizer(model)
losses = train(model, optimizer, first_task[:224], 20, 3)
metric("first", evaluate(model, first_task[224:]))

model.add_adapter("second", LoraConfig(task_type="CAUSAL_LM", **lora))
model.set_adapter("second")
if not FAULT:
    optimizer = make_optimizer(model)
losses += train(model, optimizer, second_task[:224], 25, 4)
metric("second", evaluate(model, second_task[224:]))
tell(model, losses)
