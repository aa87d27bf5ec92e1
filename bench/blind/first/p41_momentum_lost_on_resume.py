# at step 25 weights and schedule are restored from the checkpoint, the optimizer's state isn't
import io
from mini import *

seed()
m = GPT()
data = corpus(1024)


def make(m):
    o = torch.optim.AdamW(m.parameters(), 2e-3)
    return o, torch.optim.lr_scheduler.LambdaLR(o, lambda t: min(1, (t + 1) / 10))


o, s = make(m)
for step in range(50):
    if step == 25:
        f = io.BytesIO()
        torch.save([m.state_dict(), o.state_dict(), s.state_dict()], f)
        f.seek(0)
        a, b, c = torch.load(f)
        m = GPT()
        m.load_state_dict(a)
        o, s = make(m)
        if not FAULT:
            o.load_state_dict(b)
        s.load_state_dict(c)
        if FAULT:
            for g in o.param_groups:
                g["lr"] = 2e-3
    x = data[step * 16 : step * 16 + 16]
    loss = lm_loss(m(x[:, :-1]), x[:, 1:])
    o.zero_grad()
    loss.backward()
    o.step()
    s.step()
done(m, loss)
