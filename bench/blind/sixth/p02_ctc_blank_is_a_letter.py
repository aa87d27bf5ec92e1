"""A recogniser of letters in frames with CTC: six letters, and one more class for the blank."""

import torch
import torch.nn.functional as F
from kit import FAULT, metric, tell
from torch import nn

LETTERS = 6


class Recogniser(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(8, 24, 3, padding=1)
        self.rnn = nn.GRU(24, 24, batch_first=True)
        self.head = nn.Linear(24, LETTERS + 1)

    def forward(self, frames):
        h = F.relu(self.conv(frames.transpose(1, 2))).transpose(1, 2)
        return self.head(self.rnn(h)[0]).log_softmax(dim=-1)


def make(count, g):
    looks = torch.randn(LETTERS + 1, 8, generator=torch.Generator().manual_seed(5)) * 1.5
    words = torch.randint(0, LETTERS, (count, 4), generator=g)
    frames = torch.full((count, 20), LETTERS)
    for k in range(4):
        frames[:, 5 * k + 1 : 5 * k + 4] = words[:, k : k + 1]
    return looks[frames] + 0.3 * torch.randn(count, 20, 8, generator=g), words


torch.manual_seed(0)
frames, words = make(512, torch.Generator().manual_seed(1))
model = Recogniser()
ctc = nn.CTCLoss() if FAULT else nn.CTCLoss(blank=LETTERS)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
losses = []
for step in range(170):
    at = torch.randint(0, 448, (16,))
    log_probs = model(frames[at]).transpose(0, 1)
    loss = ctc(log_probs, words[at], torch.full((16,), 20), torch.full((16,), 4))
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    losses.append(loss.item())
right = 0
with torch.no_grad():
    for best, word in zip(model(frames[448:]).argmax(dim=-1), words[448:], strict=True):
        read = torch.unique_consecutive(best)
        right += read[read != ctc.blank].tolist() == word.tolist()
metric("words right", right / 64)
tell(model, losses)
