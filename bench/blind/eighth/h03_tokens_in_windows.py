"""Right: accumulation over micro-batches of unlike lengths, by the number of tokens; the last window is shorter."""

import torch
from kit import metric, tell, words
from torch import nn

torch.manual_seed(203)
VOCABULARY, PAD = 24, 0


class Model(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width, padding_idx=PAD)
        self.rnn = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens):
        return self.head(self.rnn(self.embed(tokens))[0])


data = words(352, 14, VOCABULARY, seed=23)
lengths = torch.randint(5, 15, (352,))
data[torch.arange(14)[None] >= lengths[:, None]] = PAD
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
losses = []
for _epoch in range(6):
    micro = data[torch.randperm(len(data))].split(16)
    for i in range(0, len(micro), 4):
        window = micro[i : i + 4]
        count = sum(int((m[:, 1:] != PAD).sum()) for m in window)
        total = 0.0
        optimizer.zero_grad()
        for tokens in window:
            tokens = tokens[:, : int((tokens != PAD).sum(1).max())]
            logits = model(tokens[:, :-1])
            loss = nn.functional.cross_entropy(
                logits.flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=PAD, reduction="sum"
            )
            (loss / count).backward()
            total += loss.detach() / count
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(total)
metric("loss", losses[-1])
tell(model, losses)
