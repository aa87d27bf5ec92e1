"""Right: truncated backpropagation with a state that is carried on, layers skipped at random, tied weights."""

import torch
from kit import metric, tell, words
from torch import nn

torch.manual_seed(25)
VOCAB, WIDTH, CUT = 24, 32, 8
stream = words(16, 8 * CUT + 1, VOCAB, seed=25)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.rnns = nn.ModuleList(nn.GRU(WIDTH, WIDTH, batch_first=True) for _ in range(3))
        self.gates = nn.Parameter(torch.zeros(3))
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens, states):
        h, after = self.embed(tokens), []
        for i, rnn in enumerate(self.rnns):
            if self.training and i and torch.rand(()) < 0.25:
                after.append(states[i])
                continue
            out, state = rnn(h, states[i])
            h = h + self.gates[i] * out if i else out
            after.append(state.detach())
        return self.head(h), after


model = Model()
nn.init.normal_(model.embed.weight, std=0.2)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
losses = []
for _epoch in range(6):
    states = [torch.zeros(1, len(stream), WIDTH) for _ in range(3)]
    for start in range(0, stream.shape[1] - 1, CUT):
        part = stream[:, start : start + CUT + 1]
        out, states = model(part[:, :-1], states)
        loss = nn.functional.cross_entropy(out.flatten(0, 1), part[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
model.eval()
with torch.no_grad():
    states = [torch.zeros(1, len(stream), WIDTH) for _ in range(3)]
    metric("loss", nn.functional.cross_entropy(model(stream[:, :-1], states)[0].flatten(0, 1), stream[:, 1:].flatten()))
tell(model, losses)
