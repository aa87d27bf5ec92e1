from common import *

torch.set_float32_matmul_precision("high")
m = GPT().to(D)
o = torch.optim.AdamW(m.parameters(), lr=1e-3, fused=True)
sch = torch.optim.lr_scheduler.CosineAnnealingLR(o, 40)
for i in range(40):
    ids = tokens()
    with torch.autocast(D, torch.bfloat16):
        loss = lm_loss(m(ids), ids)
    loss.backward()
    nn.utils.clip_grad_norm_(m.parameters(), 1.0)
    o.step()
    sch.step()
    o.zero_grad(set_to_none=True)
    said(i, loss)
done(m)
