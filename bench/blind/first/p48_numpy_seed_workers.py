# every DataLoader worker inherits the same numpy generator object: augmentations repeat over workers (a RandomState made in __init__)
from mini import *


class DS(torch.utils.data.Dataset):
    def __init__(s):
        s.X, s.Y = blobs(1920)
        s.rng = np.random.RandomState(0)

    def __len__(s):
        return 1920

    def __getitem__(s, i):
        rng = s.rng
        if not FAULT:
            rng = np.random.RandomState(torch.initial_seed() % 2**31 + i)
        return s.X[i] + torch.from_numpy(rng.randn(16).astype("f")), s.Y[i]


if __name__ == "__main__":
    seed()
    m = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 5))
    o = torch.optim.SGD(m.parameters(), 0.1)
    for x, y in torch.utils.data.DataLoader(DS(), 32, num_workers=2, shuffle=True):
        loss = F.cross_entropy(m(x), y)
        o.zero_grad()
        loss.backward()
        o.step()
    done(m, loss)
