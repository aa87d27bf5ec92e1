# "hardware": from step 20, the first matmul of every fifth step has one output element with a flipped high mantissa/exponent bit
from mini import *

_lin = F.linear
now = [0]
hit = [False]


def bad(x, w, b=None):
    y = _lin(x, w, b)
    if FAULT and now[0] >= 20 and now[0] % 5 == 0 and not hit[0]:
        hit[0] = True
        y = y.clone()
        f = y.detach().view(-1).view(torch.int32)
        f[5 * 96 + 70] ^= 1 << 25
    return y


F.linear = bad
seed()
m = GPT()
o = torch.optim.AdamW(m.parameters(), 2e-3)
data = corpus(1024)
for step in range(50):
    now[0] = step
    hit[0] = False
    x = data[step * 16 : step * 16 + 16]
    loss = lm_loss(m(x[:, :-1]), x[:, 1:])
    o.zero_grad()
    loss.backward()
    o.step()
done(m, loss)
