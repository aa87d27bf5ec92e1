# at step 20 the EMA is "resumed" with load_state_dict(model.state_dict(), assign=True): from then on it IS the model
import copy
from mini import *

seed()
m = GPT()
o = torch.optim.AdamW(m.parameters(), 2e-3)
data = corpus(1024)
ema = copy.deepcopy(m)
for step in range(50):
    if step == 20:
        f = {n: v for n, v in (m if FAULT else ema).state_dict().items()}
        ema.load_state_dict(f, assign=FAULT)
    x = data[step * 16 : step * 16 + 16]
    loss = lm_loss(m(x[:, :-1]), x[:, 1:])
    o.zero_grad()
    loss.backward()
    o.step()
    with torch.no_grad():
        for a, b in zip(ema.parameters(), m.parameters()):
            a.lerp_(b, 0.01)
gap = sum((a - b).norm().item() for a, b in zip(ema.parameters(), m.parameters()))
done(m, loss, f"gap={gap:.4f}")
