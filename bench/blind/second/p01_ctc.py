# speech: CTC over a strided encoder; frame lengths have to be those after the stride
import torch, torch.nn as nn, torch.nn.functional as F
from c import FAULT, seed, final

seed()


class Encoder(nn.Module):
    def __init__(self, mel=16, dim=48, vocab=12):
        super().__init__()
        self.conv = nn.Conv1d(mel, dim, 3, stride=2, padding=1)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, x):
        h = F.relu(self.conv(x.transpose(1, 2))).transpose(1, 2)
        h, _ = self.rnn(h)
        return self.out(h).log_softmax(-1)


def batch(g, n=8):
    frames = torch.randint(24, 61, (n,), generator=g)
    frames[0] = 60
    x = torch.zeros(n, 60, 16)
    targets = torch.randint(1, 12, (n, 5), generator=g)
    for i, f in enumerate(frames):
        x[i, :f] = torch.randn(int(f), 16, generator=g)
        for j, t in enumerate(targets[i]):
            x[i, j * 4 : j * 4 + 4, t] += 3
    return x, frames, targets


model = Encoder()
opt = torch.optim.Adam(model.parameters(), 2e-3)
g = torch.Generator().manual_seed(1)
for step in range(30):
    x, frames, targets = batch(g)
    logp = model(x)
    if FAULT:
        lengths = torch.full((8,), logp.shape[1])
    else:
        lengths = (frames - 1) // 2 + 1
    loss = F.ctc_loss(logp.transpose(0, 1), targets, lengths, torch.full((8,), 5), zero_infinity=True)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item())
final(loss, model)
