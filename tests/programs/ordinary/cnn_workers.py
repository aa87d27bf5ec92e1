"""A small CNN in the form of the MNIST example: train() and test(), a DataLoader with workers, StepLR."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Digits(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.x, self.y = torch.rand(n, 1, 10, 10, generator=g), torch.randint(0, 4, (n,), generator=g)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return (self.x[i] - 0.5) / 0.3, self.y[i]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 8, 3)
        self.dropout1 = nn.Dropout(0.25)
        self.fc1 = nn.Linear(8 * 3 * 3, 4)

    def forward(self, x):
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        x = self.dropout1(F.max_pool2d(x, 2))  # plant: forward
        return F.log_softmax(self.fc1(torch.flatten(x, 1)), dim=1)


def train(model, train_loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):  # turn
        data = data + 0.01 * torch.randn_like(data)  # plant: data
        optimizer.zero_grad()
        output = model(data)  # plant: output
        loss = F.nll_loss(output, target)  # plant: loss
        loss.backward()
        optimizer.step()
        print(f"Train Epoch: {epoch} [{batch_idx}]\tLoss: {loss.item()}")


def test(model, test_loader):
    model.eval()
    with torch.no_grad():
        total = sum(F.nll_loss(model(data), target, reduction="sum").item() for data, target in test_loader)
    print(f"\nTest set: Average loss: {total / 16}\n")


def main():
    torch.manual_seed(1)
    train_loader = DataLoader(Digits(48, 0), batch_size=16, shuffle=True, num_workers=1)
    test_loader = DataLoader(Digits(16, 1), batch_size=16)
    model = Net()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(1, 3):
        train(model, train_loader, optimizer, epoch)
        test(model, test_loader)
        scheduler.step()


if __name__ == "__main__":
    main()
