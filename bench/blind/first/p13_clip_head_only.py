# clip_grad_norm_ gets a generator that was used up by the line that counts it: nothing is clipped
from mini import *

seed()
m = GPT()
params = (p for p in m.parameters())
if FAULT:
    print("training", sum(p.numel() for p in params))
else:
    params = list(m.parameters())
o = torch.optim.SGD(m.parameters(), 0.2)
data = corpus(1024)
for step in range(50):
    x = data[step * 16 : step * 16 + 16]
    loss = lm_loss(m(x[:, :-1]), x[:, 1:]) * 3
    o.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(params, 0.5)
    o.step()
done(m, loss)
