"""Segmentation: images and masks come in several sizes and are resized to one."""

import torch
import torch.nn.functional as F
from kit import FAULT, metric, tell
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE = 16


class Shapes(Dataset):
    """A square of class 1 and one of class 2 on a background."""

    def __init__(self, count, seed):
        g = torch.Generator().manual_seed(seed)
        self.items = []
        for _ in range(count):
            side = int(torch.randint(20, 29, (1,), generator=g))
            mask = torch.zeros(side, side, dtype=torch.long)
            for kind in (1, 2):
                top, left = torch.randint(0, side - 8, (2,), generator=g).tolist()
                mask[top : top + 8, left : left + 8] = kind
            shade = torch.tensor([0.0, 1.0, -1.0])[mask]
            self.items.append((shade[None] + 0.3 * torch.randn(1, side, side, generator=g), mask))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, at):
        image, mask = self.items[at]
        image = F.interpolate(image[None], (SIDE, SIDE), mode="bilinear", align_corners=False)[0]
        how = {"mode": "bilinear", "align_corners": False} if FAULT else {"mode": "nearest"}
        mask = F.interpolate(mask[None, None].float(), (SIDE, SIDE), **how)[0, 0].long()
        return image, mask


torch.manual_seed(0)
train, valid = Shapes(160, 1), Shapes(32, 2)
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.Conv2d(16, 16, 3, padding=1),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.Conv2d(16, 3, 1),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
losses = []
for epoch in range(6):
    model.train()
    for images, masks in DataLoader(train, batch_size=16, shuffle=True):
        loss = F.cross_entropy(model(images), masks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
model.eval()
with torch.no_grad():
    hits = torch.zeros(3)
    either = torch.zeros(3)
    for image, mask in valid.items:
        small = F.interpolate(image[None], (SIDE, SIDE), mode="bilinear", align_corners=False)
        best = F.interpolate(model(small), mask.shape, mode="bilinear").argmax(dim=1)[0]
        for kind in range(3):
            hits[kind] += ((best == kind) & (mask == kind)).sum()
            either[kind] += ((best == kind) | (mask == kind)).sum()
metric("iou", (hits / either).mean())
tell(model, losses)
