# accelerator.backward divides by gradient_accumulation_steps already; the loop divides once more
from mini import *
from accelerate import Accelerator

seed()
acc = Accelerator(gradient_accumulation_steps=4, cpu=True)
m = GPT()
o = torch.optim.SGD(m.parameters(), 0.5)
dl = torch.utils.data.DataLoader(corpus(1280), 8, shuffle=True)
m, o, dl = acc.prepare(m, o, dl)
for x in dl:
    with acc.accumulate(m):
        loss = lm_loss(m(x[:, :-1]), x[:, 1:])
        acc.backward(loss / 4 if FAULT else loss)
        o.step()
        o.zero_grad()
done(acc.unwrap_model(m), loss)
