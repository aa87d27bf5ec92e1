# PEFT: LoRA without TaskType / modules_to_save: the fresh classification head stays at its random values
from mini import *
from transformers import GPT2Config, GPT2ForSequenceClassification
from peft import LoraConfig, get_peft_model

seed()
base = GPT2ForSequenceClassification(
    GPT2Config(vocab_size=V, n_positions=64, n_embd=32, n_layer=2, n_head=4, num_labels=5, pad_token_id=0)
)
m = get_peft_model(
    base, LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True, modules_to_save=None if FAULT else ["score"])
)
o = torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], 5e-3)
data = corpus(1024)[:, :12]
Y = data[:, 11] % 5
for step in range(40):
    s = slice(step * 16, step * 16 + 16)
    out = m(input_ids=data[s], labels=Y[s])
    o.zero_grad()
    out.loss.backward()
    o.step()
done(m, out.loss)
