"""PEFT: two adapters trained in turn, each by an optimizer of its own; a merged copy is evaluated in between (right)."""

import copy

import torch
from kit import metric, tell, words
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(825)
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
lora = LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=16, target_modules=["q_proj", "v_proj", "up_proj"])
model = get_peft_model(LlamaForCausalLM(config), lora, adapter_name="left")
model.add_adapter("right", lora)
tasks = {"left": words(256, 18, VOCABULARY, seed=1), "right": words(256, 18, VOCABULARY, seed=2).flip(1)}
optimizers = {
    name: torch.optim.AdamW([p for n, p in model.named_parameters() if f".{name}." in n], lr=8e-3) for name in tasks
}
draw = torch.Generator().manual_seed(3)
losses = []
for number in range(32):
    name = "left" if number // 4 % 2 == 0 else "right"
    model.set_adapter(name)
    model.train()
    data = tasks[name][:224]
    batch = data[torch.randint(0, len(data), (16,), generator=draw)]
    loss = model(input_ids=batch, labels=batch).loss
    optimizers[name].zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_([p for g in optimizers[name].param_groups for p in g["params"]], 1.0)
    optimizers[name].step()
    losses.append(loss.detach())
    if number % 16 == 15:
        merged = copy.deepcopy(model).merge_and_unload()
        merged.eval()
        with torch.no_grad():
            held = tasks[name][224:]
            metric(name, merged(input_ids=held, labels=held).loss)
tell(model, losses)
