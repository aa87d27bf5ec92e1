# gradient "compression" keeps error feedback in a buffer that is shared by all parameters of one shape (dict keyed by shape)
from mini import *

seed()
m = GPT()
o = torch.optim.SGD(m.parameters(), 0.3)
data = corpus(1024)
err = {}
for step in range(50):
    x = data[step * 16 : step * 16 + 16]
    loss = lm_loss(m(x[:, :-1]), x[:, 1:])
    o.zero_grad()
    loss.backward()
    if step >= 12:
        for n, p in m.named_parameters():
            k = p.shape if FAULT else n
            g = p.grad + err.get(k, 0)
            c = g.sign() * g.abs().mean()
            err[k] = g - c
            p.grad.copy_(c)
    o.step()
done(m, loss)
