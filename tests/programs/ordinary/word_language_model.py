"""A language model whose hidden state is carried over; plain SGD by hand, as in pytorch/examples."""

import torch
import torch.nn as nn

torch.manual_seed(1111)
ntokens, ninp, nhid, bptt, bsz = 25, 12, 16, 6, 4


class RNNModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.encoder = nn.Embedding(ntokens, ninp)
        self.rnn = nn.LSTM(ninp, nhid)
        self.decoder = nn.Linear(nhid, ntokens)

    def forward(self, input, hidden):
        emb = self.drop(self.encoder(input))  # plant: embedding
        output, hidden = self.rnn(emb, hidden)
        output = self.drop(output)  # plant: output
        decoded = self.decoder(output).view(-1, ntokens)
        return nn.functional.log_softmax(decoded, dim=1), hidden

    def init_hidden(self, bsz):
        return torch.zeros(1, bsz, nhid), torch.zeros(1, bsz, nhid)


def repackage_hidden(h):
    return h.detach() if isinstance(h, torch.Tensor) else tuple(repackage_hidden(v) for v in h)


train_data = torch.randint(0, ntokens, (61, bsz))
model, criterion, lr = RNNModel(), nn.NLLLoss(), 2.0
hidden = model.init_hidden(bsz)
for batch, i in enumerate(range(0, train_data.size(0) - 1, bptt)):  # turn
    data, targets = train_data[i : i + bptt], train_data[i + 1 : i + 1 + bptt].reshape(-1)
    model.zero_grad()
    hidden = repackage_hidden(hidden)
    output, hidden = model(data, hidden)  # plant: log-probabilities output
    loss = criterion(output, targets)  # plant: loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-lr)
    print(f"| batch {batch} | lr {lr:02.2f} | loss {loss.item()}")
