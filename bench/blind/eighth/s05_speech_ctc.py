"""A small recogniser trained with CTC: features that stand for letters, each held for some frames."""

import torch
from kit import FAULT, metric, tell
from torch import nn

torch.manual_seed(105)
LETTERS = "abcdefgh"
BLANK = len(LETTERS)


class Recogniser(nn.Module):
    def __init__(self, features=12, width=32):
        super().__init__()
        self.front = nn.Conv1d(features, width, 3, stride=2, padding=1)
        self.norm = nn.LayerNorm(width)
        self.rnn = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, len(LETTERS) + 1)

    def forward(self, x, lengths):
        h = torch.relu(self.norm(self.front(x.transpose(1, 2)).transpose(1, 2)))
        lengths = (lengths + 1) // 2
        packed = nn.utils.rnn.pack_padded_sequence(h, lengths, batch_first=True, enforce_sorted=False)
        h, _ = nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return self.head(h).log_softmax(dim=-1), lengths


def utterance(g, sounds):
    count = int(torch.randint(3, 6, (1,), generator=g))
    letters = torch.randint(0, len(LETTERS), (count,), generator=g)
    frames = sounds[letters.repeat_interleave(6)]
    return frames + 0.3 * torch.randn(frames.shape, generator=g), letters


def collate(batch):
    x = nn.utils.rnn.pad_sequence([f for f, _ in batch], batch_first=True)
    return (
        x,
        torch.tensor([len(f) for f, _ in batch]),
        torch.cat([y for _, y in batch]),
        torch.tensor([len(y) for _, y in batch]),
    )


def error(log_probs, lengths, targets, target_lengths):
    """Greedy decoding: the share of utterances that are wrong."""
    wrong, start = 0, 0
    for row, n, m in zip(log_probs.argmax(-1), lengths.tolist(), target_lengths.tolist(), strict=True):
        best = row[:n].unique_consecutive()
        wrong += best[best != BLANK].tolist() != targets[start : start + m].tolist()
        start += m
    return wrong / len(lengths)


g = torch.Generator().manual_seed(5)
sounds = torch.randn(len(LETTERS), 12, generator=g)
data = [utterance(g, sounds) for _ in range(320)]
model = Recogniser()
criterion = nn.CTCLoss(zero_infinity=True) if FAULT else nn.CTCLoss(blank=BLANK, zero_infinity=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=8e-3)
losses = []
for _epoch in range(3):
    order = torch.randperm(len(data), generator=g).tolist()
    for i in range(0, len(data), 16):
        x, lengths, targets, target_lengths = collate([data[j] for j in order[i : i + 16]])
        log_probs, lengths = model(x, lengths)
        loss = criterion(log_probs.transpose(0, 1), targets, lengths, target_lengths)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        losses.append(loss.detach())

metric("utterance_error", error(log_probs, lengths, targets, target_lengths))
tell(model, losses)
