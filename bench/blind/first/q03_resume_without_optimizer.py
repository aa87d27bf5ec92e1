# a new process resumes: weights and schedule from the checkpoint, but the optimizer's state isn't in the file
import os, pathlib
from mini import *

ck = os.path.join(os.environ.get("BLIND_FOLDER", "."), "checkpoint.pt")


def make(m):
    o = torch.optim.AdamW(m.parameters(), 2e-3)
    return o, torch.optim.lr_scheduler.CosineAnnealingLR(o, 100)


data = corpus(1024)
if not pathlib.Path(ck).exists():
    seed()
    m = GPT()
    o, s = make(m)
    for step in range(25):
        x = data[step * 16 : step * 16 + 16]
        l = lm_loss(m(x[:, :-1]), x[:, 1:])
        o.zero_grad()
        l.backward()
        o.step()
        s.step()
    torch.save([m.state_dict(), o.state_dict(), s.state_dict()], ck)
    print("FINAL checkpoint written")
    raise SystemExit
seed()
a, b, c = torch.load(ck)
m = GPT()
m.load_state_dict(a)
o, s = make(m)
if not FAULT:
    o.load_state_dict(b)
s.load_state_dict(c)
for step in range(25, 60):
    x = data[step * 16 : step * 16 + 16]
    loss = lm_loss(m(x[:, :-1]), x[:, 1:])
    o.zero_grad()
    loss.backward()
    o.step()
    s.step()
done(m, loss)
