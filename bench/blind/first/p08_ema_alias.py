# the average shares its storage with the weights: EMA == model
from mini import *

seed()
m = GPT()
o = torch.optim.AdamW(m.parameters(), 2e-3)
data = corpus(1024)
ema = {n: (p.data if FAULT else p.data.clone()) for n, p in m.named_parameters()}
for step in range(50):
    x = data[step * 16 : step * 16 + 16]
    loss = lm_loss(m(x[:, :-1]), x[:, 1:])
    loss.backward()
    o.step()
    o.zero_grad()
    for n, p in m.named_parameters():
        ema[n].mul_(0.99).add_(p.data, alpha=0.01)
gap = sum((ema[n] - p.data).norm().item() for n, p in m.named_parameters())
done(m, loss, f"gap={gap:.4f}")
