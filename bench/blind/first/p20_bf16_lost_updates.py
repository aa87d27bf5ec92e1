# weights cast to bfloat16 at step 12 ("saves memory"), lr 1e-4: most updates are rounded away
from mini import *

seed()
m = GPT()
lr = 1e-4
o = torch.optim.AdamW(m.parameters(), lr, weight_decay=0.0)
data = corpus(1024)
for step in range(60):
    if step == 12 and FAULT:
        m.to(torch.bfloat16)
        o = torch.optim.AdamW(m.parameters(), lr, weight_decay=0.0)
    x = data[step * 16 : step * 16 + 16]
    loss = lm_loss(m(x[:, :-1]).float(), x[:, 1:])
    o.zero_grad()
    loss.backward()
    o.step()
done(m, loss)
