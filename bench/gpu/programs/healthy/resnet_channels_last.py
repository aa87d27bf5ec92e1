from common import *
import torchvision

torch.backends.cudnn.benchmark = True
m = torchvision.models.resnet18(num_classes=10).to(D, memory_format=torch.channels_last)
o = torch.optim.SGD(m.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4, fused=True)
for i in range(20):
    x, y = images(32, s=64)
    x = x.to(memory_format=torch.channels_last)
    with torch.autocast(D, torch.bfloat16):
        loss = F.cross_entropy(m(x), y)
    o.zero_grad()
    loss.backward()
    o.step()
    said(i, loss)
done(m)
