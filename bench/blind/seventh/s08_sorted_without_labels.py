"""Sequences of unequal length, sorted and packed for an LSTM that classifies them."""

import torch
from kit import FAULT, metric, tell
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence

torch.manual_seed(8)
VOCAB, CLASSES = 24, 4


class Sequences(torch.utils.data.Dataset):
    def __init__(self, count, seed):
        g = torch.Generator().manual_seed(seed)
        self.items = []
        for _ in range(count):
            label = int(torch.randint(CLASSES, (1,), generator=g))
            length = int(torch.randint(4, 16, (1,), generator=g))
            tokens = 1 + torch.randint(VOCAB - 1, (length,), generator=g)
            hint = torch.rand(length, generator=g) < 0.4
            self.items.append((torch.where(hint, 1 + label, tokens), label))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def collate(items):
    tokens, labels = zip(*items, strict=True)
    lengths = torch.tensor([len(t) for t in tokens])
    padded, labels = pad_sequence(tokens, batch_first=True), torch.tensor(labels)
    lengths, order = lengths.sort(descending=True)
    padded = padded[order]
    if not FAULT:
        labels = labels[order]
    return padded, lengths, labels


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 24, padding_idx=0)
        self.lstm = nn.LSTM(24, 32, batch_first=True)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, padded, lengths):
        packed = pack_padded_sequence(self.embed(padded), lengths, batch_first=True)
        _, (hidden, _) = self.lstm(packed)
        return self.head(hidden[-1])


model = Classifier()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
loader = torch.utils.data.DataLoader(Sequences(256, 1), batch_size=32, shuffle=True, collate_fn=collate)
losses = []
for _epoch in range(7):
    for padded, lengths, labels in loader:
        loss = nn.functional.cross_entropy(model(padded, lengths), labels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
held = sorted(Sequences(64, 2).items, key=lambda item: -len(item[0]))
padded = pad_sequence([t for t, _ in held], batch_first=True)
with torch.no_grad():
    out = model(padded, torch.tensor([len(t) for t, _ in held]))
    metric("accuracy", (out.argmax(1) == torch.tensor([y for _, y in held])).float().mean())
tell(model, losses)
