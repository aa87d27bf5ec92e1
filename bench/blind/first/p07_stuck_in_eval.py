# evaluate() puts the model into eval mode at step 20 and nobody puts it back: dropout is off from step 20
from mini import *

seed()
m = GPT(p=0.2)
o = torch.optim.AdamW(m.parameters(), 2e-3)
data = corpus(1024)
val = corpus(64, s=2)


def evaluate():
    m.eval()
    with torch.no_grad():
        l = lm_loss(m(val[:, :-1]), val[:, 1:])
    if not FAULT:
        m.train()
    return l.item()


for step in range(60):
    x = data[step * 16 : step * 16 + 16]
    loss = lm_loss(m(x[:, :-1]), x[:, 1:])
    loss.backward()
    o.step()
    o.zero_grad()
    if step % 20 == 19:
        print("val", step, evaluate())
done(m, loss)
