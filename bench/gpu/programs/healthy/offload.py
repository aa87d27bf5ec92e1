from common import *

m = GPT(n=3).to(D)
o = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, nesterov=True)
for i in range(15):
    ids = tokens()
    with torch.autograd.graph.save_on_cpu(pin_memory=D == "cuda"):
        loss = lm_loss(m(ids), ids)
    o.zero_grad()
    loss.backward()
    o.step()
    said(i, loss)
done(m)
