# IterableDataset that does not split itself over DataLoader workers: every sample twice
import torch, torch.nn as nn
from torch.utils.data import IterableDataset, DataLoader, get_worker_info
from c import FAULT, seed, final

seed()


class Shards(IterableDataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(5)
        self.x = torch.randn(n, 16, generator=g)
        self.y = (self.x.sum(1) > 0).long()

    def __iter__(self):
        info = get_worker_info()
        first, stride = (0, 1) if FAULT or info is None else (info.id, info.num_workers)
        for i in range(first, len(self.x), stride):
            yield self.x[i], self.y[i]


model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 2))
opt = torch.optim.Adam(model.parameters(), 2e-3)
if __name__ == "__main__":
    step = 0
    for epoch in range(2):
        for x, y in DataLoader(Shards(320), batch_size=16, num_workers=2):
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            print(step, loss.item())
            step += 1
    final(loss, model)
