from common import *
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

m = LlamaForCausalLM(
    LlamaConfig(hidden_size=128, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4, vocab_size=512)
).to(D, torch.bfloat16)
m = get_peft_model(m, LoraConfig(r=8, target_modules=["q_proj", "v_proj"], lora_dropout=0.05))
o = torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=1e-3)
for i in range(20):
    ids = tokens()
    loss = m(input_ids=ids, labels=ids).loss
    loss.backward()
    o.step()
    o.zero_grad()
    said(i, loss)
done(m)
