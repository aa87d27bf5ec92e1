"""Train, then torch.export with a dynamic batch size, torch.fx, and a run of the exported program."""

import torch
import torch.fx
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.EmbeddingBag(40, 8, mode="mean")
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 3))

    def forward(self, ids):
        return self.mlp(self.embed(ids))


torch.manual_seed(23)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
ids = torch.randint(0, 40, (32, 6))
labels = ids[:, 0] % 3
weights = torch.ones(3)
for epoch in range(6):  # turn
    class_weights = weights * 0.5  # plant: class-weights
    logits = model(ids)  # plant: output
    log_probs = nn.functional.log_softmax(logits, dim=-1)  # plant: log-probabilities
    loss = nn.functional.nll_loss(log_probs, labels, weight=class_weights)  # plant: loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("epoch", epoch, loss.item())

model.eval()
batch = torch.export.Dim("batch", min=1, max=64)
program = torch.export.export(model, (ids[:4],), dynamic_shapes=({0: batch},))
print(program.graph_module.code.strip())
graph = torch.fx.symbolic_trace(model)
with torch.no_grad():
    print(torch.equal(program.module()(ids), model(ids)), torch.equal(graph(ids), model(ids)))
