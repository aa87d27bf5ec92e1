from common import *
import torchvision

torch.backends.cuda.matmul.allow_tf32 = True
m = torchvision.models.resnet18(num_classes=10).to(D)
o = torch.optim.AdamW(m.parameters(), lr=1e-3)
s = torch.amp.GradScaler(D)
for i in range(20):
    x, y = images(32, s=64)
    with torch.autocast(D, torch.float16):
        loss = F.cross_entropy(m(x), y)
    o.zero_grad()
    s.scale(loss).backward()
    s.unscale_(o)
    nn.utils.clip_grad_norm_(m.parameters(), 1.0)
    s.step(o)
    s.update()
    said(i, loss)
done(m)
