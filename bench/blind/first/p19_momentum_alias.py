# own SGD: the momentum buffer is the gradient itself, not a clone; zero_grad(set_to_none=False) and backward write into it
from mini import *


class MySGD(torch.optim.Optimizer):
    def __init__(s, ps, lr):
        super().__init__(ps, dict(lr=lr))

    @torch.no_grad()
    def step(s):
        for g in s.param_groups:
            for p in g["params"]:
                st = s.state[p]
                if "buf" not in st:
                    st["buf"] = p.grad if FAULT else p.grad.clone()
                else:
                    st["buf"].mul_(0.9).add_(p.grad)
                p.sub_(st["buf"], alpha=g["lr"])


seed()
m = GPT()
o = MySGD(m.parameters(), 0.05)
data = corpus(1024)
for step in range(50):
    x = data[step * 16 : step * 16 + 16]
    loss = lm_loss(m(x[:, :-1]), x[:, 1:])
    o.zero_grad(set_to_none=False)
    loss.backward()
    o.step()
done(m, loss)
