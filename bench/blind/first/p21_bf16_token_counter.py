# the number of labelled tokens of a window is counted up in bfloat16: it stops at 256 of 512, the loss is divided by too little
from mini import *

seed()
m = GPT()
o = torch.optim.SGD(m.parameters(), 0.1)
data = corpus(4096)[:, :9]
for step in range(10):
    n = torch.zeros((), dtype=torch.bfloat16 if FAULT else torch.float32)
    total = 0.0
    for k in range(4):
        i = (step * 4 + k) % 32 * 128
        x = data[i : i + 128]
        y = x[:, 1:].clone()
        y[:, :-1] = -100
        for c in (y != -100).sum(1).to(n.dtype).unbind():
            n += c
        logits = m(x[:, :-1])
        total = total + F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum", ignore_index=-100)
    loss = total / n.float()
    o.zero_grad()
    loss.backward()
    o.step()
done(m, loss, f"n={n.item()}")
