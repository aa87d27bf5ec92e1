# reshuffling at the start of each epoch > 0 shuffles the inputs but not the labels (step 20 on)
from mini import *

seed()
m = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 5))
o = torch.optim.SGD(m.parameters(), 0.1, momentum=0.9)
X, Y = blobs(640)
for epoch in range(3):
    if epoch:
        perm = torch.randperm(640)
        X = X[perm]
        if not FAULT:
            Y = Y[perm]
    for i in range(20):
        x, y = X[i * 32 : i * 32 + 32], Y[i * 32 : i * 32 + 32]
        loss = F.cross_entropy(m(x), y)
        o.zero_grad()
        loss.backward()
        o.step()
done(m, loss)
