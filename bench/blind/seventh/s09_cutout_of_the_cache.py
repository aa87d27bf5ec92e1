"""Small pictures held in memory, with flips and cutout as augmentation."""

import torch
from kit import FAULT, metric, tell
from torch import nn

torch.manual_seed(9)
SIDE, CLASSES = 12, 4


def pictures(count, seed):
    g = torch.Generator().manual_seed(seed)
    label = torch.randint(CLASSES, (count,), generator=g)
    image = 0.6 * torch.randn(count, 1, SIDE, SIDE, generator=g)
    for i, c in enumerate(label.tolist()):
        row, column = 6 * (c // 2), 6 * (c % 2)
        image[i, :, row + 1 : row + 5, column + 1 : column + 5] += 0.8
    return image, label


class Cached(torch.utils.data.Dataset):
    """Pictures are decoded once, and kept."""

    def __init__(self, images, labels, train):
        self.images, self.labels, self.train = images, labels, train

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        image = self.images[i]
        if self.train:
            image = self.augment(image)
        return image, self.labels[i]

    @staticmethod
    def augment(image):
        if not FAULT:
            image = image.clone()
        row, column = torch.randint(SIDE - 5, (2,)).tolist()
        image[:, row : row + 5, column : column + 5] = 0.0
        return image + 0.05 * torch.randn_like(image)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.head = nn.Linear(16 * 36, CLASSES)

    def forward(self, x):
        h = nn.functional.relu(self.norm(self.conv1(x)))
        return self.head(nn.functional.relu(self.conv2(h)).flatten(1))


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
train = Cached(*pictures(256, 1), train=True)
loader = torch.utils.data.DataLoader(train, batch_size=32, shuffle=True)
losses = []
for _epoch in range(7):
    model.train()
    for image, label in loader:
        loss = nn.functional.cross_entropy(model(image), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
model.eval()
with torch.no_grad():
    image, label = pictures(128, 2)
    metric("loss", nn.functional.cross_entropy(model(image), label))
tell(model, losses)
