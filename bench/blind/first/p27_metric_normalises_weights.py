# from step 20 a metric computes cosine similarities of the embeddings and normalises them in place
from mini import *

seed()
m = GPT()
o = torch.optim.AdamW(m.parameters(), 2e-3)
data = corpus(1024)


def spread(w):
    w = w.data if FAULT else w.data.clone()
    w.div_(w.norm(dim=1, keepdim=True))
    return (w @ w.T).mean().item()


for step in range(50):
    x = data[step * 16 : step * 16 + 16]
    loss = lm_loss(m(x[:, :-1]), x[:, 1:])
    o.zero_grad()
    loss.backward()
    o.step()
    if step >= 20 and step % 10 == 0:
        print("cos", spread(m.tok.weight))
done(m, loss)
