"""A small detector: one object's class and box (l1 loss), with random horizontal flips as augmentation."""

import torch
import torch.nn.functional as F
from kit import FAULT, metric, tell
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE = 16


class Objects(Dataset):
    def __init__(self, count, seed, augment):
        g = torch.Generator().manual_seed(seed)
        self.augment = augment
        self.images = 0.2 * torch.randn(count, 1, SIDE, SIDE, generator=g)
        self.boxes, self.kinds = torch.zeros(count, 4), torch.randint(0, 2, (count,), generator=g)
        for i in range(count):
            w, h = torch.randint(4, 8, (2,), generator=g).tolist()
            left = int(torch.randint(0, SIDE - w, (1,), generator=g))
            top = int(torch.randint(0, SIDE - h, (1,), generator=g))
            self.images[i, 0, top : top + h, left : left + w] += 1.0 if self.kinds[i] else -1.0
            self.boxes[i] = torch.tensor([left, top, left + w, top + h]) / SIDE

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        image, box = self.images[i], self.boxes[i].clone()
        if self.augment and torch.rand(()) < 0.5:
            image = image.flip(-1)
            if not FAULT:
                box[0], box[2] = 1 - self.boxes[i, 2], 1 - self.boxes[i, 0]
        return image, self.kinds[i], box


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 12, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(12, 24, 3, 2, 1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(24 * 16, 64),
            nn.ReLU(),
        )
        self.kind = nn.Linear(64, 2)
        self.box = nn.Linear(64, 4)

    def forward(self, images):
        h = self.body(images)
        return self.kind(h), self.box(h).sigmoid()


torch.manual_seed(0)
train, valid = Objects(384, 1, augment=True), Objects(96, 2, augment=False)
model = Detector()
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
losses = []
for epoch in range(8):
    for images, kinds, boxes in DataLoader(train, batch_size=32, shuffle=True):
        kind, box = model(images)
        loss = F.cross_entropy(kind, kinds) + 5 * F.l1_loss(box, boxes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
with torch.no_grad():
    kind, box = model(valid.images)
    metric("box error", F.l1_loss(box, valid.boxes))
    metric("accuracy", (kind.argmax(1) == valid.kinds).float().mean())
tell(model, losses)
