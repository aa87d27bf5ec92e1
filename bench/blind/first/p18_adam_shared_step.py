# own Adam: the step counter is incremented inside the loop over parameters: the bias correction is almost 1 from the first step on
from mini import *


class MyAdam(torch.optim.Optimizer):
    def __init__(s, ps, lr):
        super().__init__(ps, dict(lr=lr))
        s.t = 0

    @torch.no_grad()
    def step(s):
        if not FAULT:
            s.t += 1
        for g in s.param_groups:
            for p in g["params"]:
                if p.grad is None:
                    continue
                if FAULT:
                    s.t += 1
                st = s.state[p]
                if not st:
                    st["m"], st["v"] = torch.zeros_like(p), torch.zeros_like(p)
                st["m"].lerp_(p.grad, 0.1)
                st["v"].lerp_(p.grad**2, 0.001)
                mh, vh = st["m"] / (1 - 0.9**s.t), st["v"] / (1 - 0.999**s.t)
                p.sub_(g["lr"] * mh / (vh.sqrt() + 1e-8))


seed()
m = GPT()
o = MyAdam(m.parameters(), 1e-3)
data = corpus(1024)
for step in range(50):
    x = data[step * 16 : step * 16 + 16]
    loss = lm_loss(m(x[:, :-1]), x[:, 1:])
    o.zero_grad()
    loss.backward()
    o.step()
done(m, loss)
