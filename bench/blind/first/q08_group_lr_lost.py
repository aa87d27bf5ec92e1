# nanoGPT style: the schedule writes one lr into all groups; the head's group, made with a tenth of the rate, loses it at step 10 (end of warm-up)
from mini import *

seed()
m = GPT()
h = list(m.head.parameters())
o = torch.optim.AdamW(
    [dict(params=[p for p in m.parameters() if all(p is not q for q in h)]), dict(params=h, lr=2e-4)], 2e-3
)
data = corpus(1024)
base = [g["lr"] for g in o.param_groups]
for step in range(50):
    for g, b in zip(o.param_groups, base):
        g["lr"] = b * min(1, (step + 1) / 10) if step < 10 or not FAULT else 2e-3
    x = data[step * 16 : step * 16 + 16]
    loss = lm_loss(m(x[:, :-1]), x[:, 1:])
    o.zero_grad()
    loss.backward()
    o.step()
done(m, loss)
