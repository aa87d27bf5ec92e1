from common import *
import timm

m = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, num_classes=10, drop_path_rate=0.1).to(D)
o = torch.optim.AdamW(m.parameters(), lr=5e-4, weight_decay=0.05)
s = torch.amp.GradScaler(D)
from timm.loss import LabelSmoothingCrossEntropy

L = LabelSmoothingCrossEntropy()
for i in range(20):
    x, y = images(32)
    with torch.autocast(D, torch.float16):
        loss = L(m(x), y)
    o.zero_grad()
    s.scale(loss).backward()
    s.step(o)
    s.update()
    said(i, loss)
done(m)
