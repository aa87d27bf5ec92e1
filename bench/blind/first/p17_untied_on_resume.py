# at step 20 the run resumes from its own checkpoint; loading makes a fresh head Parameter and so unties head and embedding
import io
from mini import *

seed()
m = GPT(tie=True)
o = torch.optim.AdamW(m.parameters(), 2e-3)
data = corpus(1024)
for step in range(50):
    if step == 20:
        f = io.BytesIO()
        torch.save((m.state_dict(), o.state_dict()), f)
        f.seek(0)
        sd, od = torch.load(f)
        m = GPT(tie=True)
        if FAULT:
            m.head.weight = nn.Parameter(sd["head.weight"].clone())
        m.load_state_dict(sd)
        o = torch.optim.AdamW(m.parameters(), 2e-3)
        if not FAULT:
            o.load_state_dict(od)
        else:
            for p, (k, st) in zip(m.parameters(), od["state"].items()):
                o.state[p] = st
            o.state[m.head.weight] = {k: v.clone() for k, v in o.state[m.tok.weight].items()}
    x = data[step * 16 : step * 16 + 16]
    loss = lm_loss(m(x[:, :-1]), x[:, 1:])
    o.zero_grad()
    loss.backward()
    o.step()
done(m, loss)
