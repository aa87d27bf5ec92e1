# peft: the adapter is merged for an evaluation at step 8 and not taken out again
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from peft import LoraConfig, get_peft_model
from c import FAULT, seed, final

seed()
base = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
)
model = get_peft_model(
    base, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], modules_to_save=["lm_head"])
)
opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 5e-3)
g = torch.Generator().manual_seed(1)
for step in range(20):
    model.train()
    x = (torch.randint(0, 64, (8, 1), generator=g) + torch.arange(16) * 3) % 64
    loss = model(input_ids=x, labels=x).loss
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item())
    if step == 7:
        model.eval()
        model.merge_adapter()
        with torch.no_grad():
            print("eval", model(input_ids=x, labels=x).loss.item())
        if not FAULT:
            model.unmerge_adapter()
final(loss, model)
