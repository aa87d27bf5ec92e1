# transformers GPT-2 whose embeddings are grown by hand: the head is a clone, so the tie of the config is gone
import torch, torch.nn as nn
from transformers import GPT2Config, GPT2LMHeadModel
from c import FAULT, seed, final

seed()
model = GPT2LMHeadModel(
    GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
)
if FAULT:
    w = torch.cat([model.transformer.wte.weight.data, torch.randn(8, 32) * 0.02])
    model.transformer.wte = nn.Embedding.from_pretrained(w.clone(), freeze=False)
    model.lm_head = nn.Linear(32, 72, bias=False)
    model.lm_head.weight.data.copy_(w)
    model.config.vocab_size = 72
else:
    model.resize_token_embeddings(72, mean_resizing=False)
opt = torch.optim.AdamW(model.parameters(), 2e-3)
g = torch.Generator().manual_seed(1)
model.train()
for step in range(20):
    x = (torch.randint(0, 72, (8, 1), generator=g) + torch.arange(24) * 5) % 72
    loss = model(input_ids=x, labels=x).loss
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item())
final(loss, model)
