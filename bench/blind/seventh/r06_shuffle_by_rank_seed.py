# RANKS
"""DDP; first epoch in order of length (SortaGrad), later ones shuffled; each rank takes every other batch."""

import torch
import torch.distributed as dist
from kit import FAULT, metric, tell, words
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
VOCABULARY, SEED = 24, 106
data = words(384, 14, VOCABULARY, seed=6)
g = torch.Generator().manual_seed(6)
lengths = torch.randint(6, 14, (384,), generator=g)
mask = torch.arange(13)[None] < lengths[:, None] - 1


class SortedThenShuffled(torch.utils.data.Sampler):
    """Yields the indices of this rank's samples."""

    def __init__(self, lengths, seed):
        self.lengths, self.seed, self.epoch = lengths, seed, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return len(self.lengths) // world

    def __iter__(self):
        if self.epoch == 0:
            order = self.lengths.argsort(stable=True)
        elif FAULT:
            order = torch.randperm(len(self.lengths))
        else:
            g = torch.Generator().manual_seed(self.seed + self.epoch)
            order = torch.randperm(len(self.lengths), generator=g)
        return iter(order[rank::world].tolist())


class Model(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.rnn = nn.GRU(width, 48, batch_first=True)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(48, VOCABULARY)

    def forward(self, tokens):
        return self.head(self.drop(self.rnn(self.embed(tokens))[0]))


torch.manual_seed(SEED)
net = Model()
model = DDP(net)
torch.manual_seed(SEED + rank)  # another dropout mask on each rank
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
sampler = SortedThenShuffled(lengths[:352], SEED)
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(data[:352], mask[:352]), batch_size=11, sampler=sampler
)
losses = []
for epoch in range(4):
    sampler.set_epoch(epoch)
    for tokens, keep in loader:
        logits = model(tokens[:, :-1])
        each = nn.functional.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")
        count = keep.sum().float()
        dist.all_reduce(count)
        loss = (each * keep).sum() * world / count
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())

net.eval()
with torch.no_grad():
    value = nn.functional.cross_entropy(net(data[352:, :-1]).transpose(1, 2), data[352:, 1:])
if rank == 0:
    metric("heldout_loss", value)
    tell(net, losses)
dist.destroy_process_group()
