# at each "epoch" (20 steps) train() registers the same forward hook (scales a branch by 0.7) once more on a block
from mini import *

seed()
m = GPT()
o = torch.optim.AdamW(m.parameters(), 2e-3)
data = corpus(1024)


def train(epoch):
    h = None
    if epoch == 0 or FAULT:
        h = m.blocks[0].fc.register_forward_hook(lambda mod, a, out: out * 0.7)
    for i in range(20):
        k = epoch * 20 + i
        x = data[k * 16 : k * 16 + 16]
        loss = lm_loss(m(x[:, :-1]), x[:, 1:])
        o.zero_grad()
        loss.backward()
        o.step()
    return loss


for e in range(3):
    loss = train(e)
done(m, loss)
