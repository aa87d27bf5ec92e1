"""Siamese embedding with a triplet loss; the same network sees anchor, positive and negative."""

import torch
import torch.nn as nn


class EmbeddingNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(7, 16), nn.PReLU(), nn.Linear(16, 4))

    def forward(self, x):
        e = self.fc(x)  # plant: embedding
        return e


class TripletNet(nn.Module):
    def __init__(self, embedding_net):
        super().__init__()
        self.embedding_net = embedding_net

    def forward(self, x1, x2, x3):
        return self.embedding_net(x1), self.embedding_net(x2), self.embedding_net(x3)


class TripletLoss(nn.Module):
    def forward(self, anchor, positive, negative, margin=2.0):
        distance_positive = (anchor - positive).pow(2).sum(1)
        distance_negative = (anchor - negative).pow(2).sum(1)  # plant: distance
        losses = torch.relu(distance_positive - distance_negative + margin)
        return losses.mean()


torch.manual_seed(66)
net, criterion = TripletNet(EmbeddingNet()), TripletLoss()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
centers = 0.5 * torch.randn(3, 7)
for step in range(8):  # turn
    label = torch.randint(0, 3, (24,))
    anchor = centers[label] + 0.3 * torch.randn(24, 7)  # plant: data
    positive = centers[label] + 0.3 * torch.randn(24, 7)
    negative = centers[(label + 1) % 3] + 0.3 * torch.randn(24, 7)
    a, p, n = net(anchor, positive, negative)
    loss = criterion(a, p, n)  # plant: loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
