# transformers GPT-2 with left padding and no position_ids
import torch
from transformers import GPT2Config, GPT2LMHeadModel
from c import FAULT, seed, final

seed()
model = GPT2LMHeadModel(
    GPT2Config(
        vocab_size=64,
        n_positions=32,
        n_embd=32,
        n_layer=2,
        n_head=2,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
        pad_token_id=0,
    )
)
opt = torch.optim.AdamW(model.parameters(), 2e-3)
g = torch.Generator().manual_seed(1)
for step in range(20):
    n = torch.randint(6, 21, (8,), generator=g)
    n[0] = 20
    mask = (torch.arange(20)[None] >= (20 - n)[:, None]).long()
    x = ((torch.randint(0, 63, (8, 1), generator=g) + torch.arange(20) * 3) % 63 + 1) * mask
    y = x.masked_fill(mask == 0, -100)
    kw = {} if FAULT else {"position_ids": (mask.cumsum(1) - 1).clamp(min=0)}
    loss = model(input_ids=x, attention_mask=mask, labels=y, **kw).loss
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item())
final(loss, model)
