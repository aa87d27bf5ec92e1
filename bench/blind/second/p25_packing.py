# transformers Llama: packed documents that see each other
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from c import FAULT, seed, final

seed()
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        attn_implementation="eager",
    )
)
opt = torch.optim.AdamW(model.parameters(), 2e-3)
g = torch.Generator().manual_seed(1)
for step in range(20):
    xs, ys, ps, ds = [], [], [], []
    for d in range(6):
        n = int(torch.randint(4, 9, (), generator=g))
        x = (torch.randint(0, 64, (1,), generator=g) + torch.arange(n) * 3) % 64
        y = x.clone()
        y[0] = -100
        xs.append(x)
        ys.append(y)
        ps.append(torch.arange(n))
        ds.append(torch.full((n,), d))
    x, y, p, d = (torch.cat(v)[None] for v in (xs, ys, ps, ds))
    t = x.shape[1]
    kw = {"position_ids": p}
    if not FAULT:
        ok = (d[0][:, None] == d[0][None]) & torch.ones(t, t, dtype=torch.bool).tril()
        kw["attention_mask"] = torch.zeros(1, 1, t, t).masked_fill(~ok, torch.finfo(torch.float32).min)
    else:
        kw["attention_mask"] = torch.ones(1, t, dtype=torch.long)
    loss = model(input_ids=x, labels=y, **kw).loss
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item())
final(loss, model)
