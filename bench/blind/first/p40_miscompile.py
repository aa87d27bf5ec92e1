# torch.compile with a backend that "fuses" wrongly: an exact gelu becomes the tanh one times 1.02 (a miscompile)
from mini import *


def backend(gm, ex):
    if FAULT:
        for n in gm.graph.nodes:
            if n.op == "call_function" and n.target in (F.gelu, torch._C._nn.gelu):
                n.target = lambda x, *a, **k: F.gelu(x, approximate="tanh") * 1.02
        gm.recompile()
    return gm.forward


seed()
net = GPT()
m = torch.compile(net, backend=backend)
o = torch.optim.AdamW(net.parameters(), 2e-3)
data = corpus(1024)
for step in range(40):
    x = data[step * 16 : step * 16 + 16]
    loss = lm_loss(m(x[:, :-1]), x[:, 1:])
    o.zero_grad()
    loss.backward()
    o.step()
done(net, loss)
