"""Federated averaging: clients take turns, each with an optimizer of its own that lives for one round."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)


def classifier():
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))


server, clients = classifier(), [classifier() for _ in range(3)]
data = [torch.randn(64, 8) + shift for shift in range(3)]
for _ in range(5):
    states = []
    for client, x in zip(clients, data, strict=True):
        client.load_state_dict(server.state_dict())
        optimizer = torch.optim.SGD(client.parameters(), lr=0.05)
        for _ in range(4):
            rows = torch.randint(0, 64, (16,))
            loss = F.cross_entropy(client(x[rows]), x[rows, :4].argmax(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        states.append(client.state_dict())
    server.load_state_dict({name: sum(state[name] for state in states) / 3 for name in states[0]})
print(f"loss {loss.item():.4f}")
