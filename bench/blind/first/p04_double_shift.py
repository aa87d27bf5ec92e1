# the collator shifts the labels and so does the model (Transformers shifts inside)
import os

os.environ["HF_HUB_OFFLINE"] = "1"
from mini import *
from transformers import GPT2Config, GPT2LMHeadModel

seed()
m = GPT2LMHeadModel(GPT2Config(vocab_size=V, n_positions=64, n_embd=32, n_layer=2, n_head=4))
m.train()
o = torch.optim.AdamW(m.parameters(), 2e-3)
data = corpus(1024)
for step in range(50):
    x = data[step * 16 : step * 16 + 16]
    if FAULT:
        out = m(input_ids=x[:, :-1], labels=x[:, 1:])
    else:
        out = m(input_ids=x, labels=x)
    out.loss.backward()
    o.step()
    o.zero_grad()
done(m, out.loss)
