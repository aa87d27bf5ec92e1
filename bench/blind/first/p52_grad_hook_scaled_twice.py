# a tensor hook that scales the gradient of an embedding is registered anew at every evaluation (steps 15, 30, 45): the scale compounds
from mini import *

seed()
m = GPT()
o = torch.optim.SGD(m.parameters(), 0.5)
data = corpus(1024)


def setup():
    m.tok.weight.register_hook(lambda g: g * 0.5)


setup()
for step in range(60):
    if step and step % 15 == 0 and FAULT:
        setup()
    x = data[step * 16 : step * 16 + 16]
    loss = lm_loss(m(x[:, :-1]), x[:, 1:])
    o.zero_grad()
    loss.backward()
    o.step()
done(m, loss)
