from common import *

m = nn.ModuleDict(
    dict(e=nn.Embedding(100, 64), r=nn.LSTM(64, 128, 2, dropout=0.2, batch_first=True), h=nn.Linear(128, 100))
).to(D)
o = torch.optim.RMSprop(m.parameters(), lr=1e-3)
for i in range(20):
    ids = tokens(16, 40, 100)
    loss = lm_loss(m["h"](m["r"](m["e"](ids))[0]), ids)
    o.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(m.parameters(), 0.5)
    o.step()
    said(i, loss)
done(m)
