"""Set prediction as in DETR: each picture's queries are matched with its boxes, then scored against them."""

import itertools

import torch
from kit import FAULT, metric, tell
from torch import nn

torch.manual_seed(108)
QUERIES, CLASSES, PATCHES = 5, 4, 16
ORDERS = torch.tensor(list(itertools.permutations(range(QUERIES))))


class Detector(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.query = nn.Parameter(torch.randn(QUERIES, width))
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, width))
        self.label = nn.Linear(width, CLASSES)
        self.box = nn.Linear(width, 4)

    def forward(self, patches):
        memory = self.embed(patches)
        query = self.query.expand(len(patches), -1, -1)
        h = self.norm(query + self.attention(query, memory, memory, need_weights=False)[0])
        h = h + self.feed(h)
        return self.label(h), self.box(h).sigmoid()


def pictures(count, g):
    """Five things a picture, each in a patch of its own: its class and box are what the patch shows."""
    x = 0.1 * torch.randn(count, PATCHES, 8, generator=g)
    labels = torch.randint(0, CLASSES, (count, QUERIES), generator=g)
    boxes = 0.1 + 0.8 * torch.rand(count, QUERIES, 4, generator=g)
    shown = torch.cat([2 * nn.functional.one_hot(labels, CLASSES).float(), 2 * boxes], dim=2)
    where = torch.rand(count, PATCHES, generator=g).argsort(1)[:, :QUERIES]
    return x.scatter_add(1, where[..., None].expand(-1, -1, 8), shown), labels, boxes


def assign(cost):
    """The assignment of least cost, among all of them: rows, and the column of each."""
    rows = torch.arange(QUERIES)
    return rows, ORDERS[cost[rows, ORDERS].sum(1).argmin()]


@torch.no_grad()
def match(logits, boxes, labels, targets):
    """For each picture, the pairs of least cost."""
    pairs = []
    for i in range(len(logits)):
        cost = -logits[i].softmax(-1)[:, labels[i]] + 2 * torch.cdist(boxes[i], targets[i], p=1)
        pairs.append(assign(cost))
    return pairs


g = torch.Generator().manual_seed(8)
model = Detector()
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=1e-4)
losses = []
for _step in range(80):
    x, labels, targets = pictures(16, g)
    logits, boxes = model(x)
    class_loss = box_loss = 0.0
    for i, (query, thing) in enumerate(match(logits, boxes, labels, targets)):
        if FAULT:
            query, thing = thing, query
        class_loss = class_loss + nn.functional.cross_entropy(logits[i, query], labels[i, thing])
        box_loss = box_loss + nn.functional.l1_loss(boxes[i, query], targets[i, thing])
    loss = (class_loss + 2 * box_loss) / len(x)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    losses.append(loss.detach())

metric("loss", torch.stack(losses[-10:]).mean())
tell(model, losses)
