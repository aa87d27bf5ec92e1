"""Gradient accumulation over a loader whose length is no multiple of the window."""

import torch
from kit import FAULT, metric, tell, words
from torch import nn

torch.manual_seed(4)
VOCAB, WINDOW = 40, 4
data = words(400, 13, VOCAB, seed=4)
train, held = data[:352], data[352:]


class Model(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, VOCAB)

    def forward(self, tokens):
        return self.head(self.rnn(self.embed(tokens))[0])


def loss_of(model, tokens):
    return nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        self.losses = []

    def epoch(self, loader):
        if not FAULT:
            self.optimizer.zero_grad()
        total = 0.0
        for i, batch in enumerate(loader):
            loss = loss_of(self.model, batch) / WINDOW
            loss.backward()
            total += loss.item()
            if (i + 1) % WINDOW == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.losses.append(total)
                total = 0.0


loader = torch.utils.data.DataLoader(train, batch_size=16, shuffle=True)
trainer = Trainer(Model())
for _ in range(8):
    trainer.epoch(loader)
with torch.no_grad():
    metric("loss", loss_of(trainer.model, held))
tell(trainer.model, trainer.losses)
