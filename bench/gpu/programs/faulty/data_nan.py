from common import *


class DS(torch.utils.data.Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, i):
        x = torch.randn(32, generator=torch.Generator().manual_seed(i))
        x[3] = float("nan") if i == 77 else x[3]
        return x, i % 10


m = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10)).to(D)
o = torch.optim.AdamW(m.parameters(), lr=1e-3, fused=True)
for i, (x, y) in enumerate(
    torch.utils.data.DataLoader(DS(), batch_size=8, shuffle=False, num_workers=2, pin_memory=True)
):
    loss = F.cross_entropy(m(x.to(D, non_blocking=True)), y.to(D, non_blocking=True))
    o.zero_grad()
    loss.backward()
    o.step()
    said(i, loss)
    if i > 12:
        break
