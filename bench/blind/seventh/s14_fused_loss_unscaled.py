"""A next-token loss that computes its gradient in forward, chunk by chunk, and a second head."""

import torch
from kit import FAULT, metric, tell, words
from torch import nn

torch.manual_seed(14)
VOCAB, WIDTH = 48, 32
data = words(512, 14, VOCAB, seed=14)


class FusedLinearCrossEntropy(torch.autograd.Function):
    """Never holds all logits: both gradients are made in forward."""

    @staticmethod
    def forward(ctx, hidden, weight, target, chunk=64):
        grad_hidden, grad_weight = torch.empty_like(hidden), torch.zeros_like(weight)
        total, count = hidden.new_zeros(()), len(hidden)
        for start in range(0, count, chunk):
            h, t = hidden[start : start + chunk], target[start : start + chunk]
            logits = h @ weight.T
            total += nn.functional.cross_entropy(logits, t, reduction="sum")
            grad = logits.softmax(1)
            grad[torch.arange(len(t)), t] -= 1
            grad_hidden[start : start + chunk] = grad @ weight / count
            grad_weight += grad.T @ h / count
        ctx.save_for_backward(grad_hidden, grad_weight)
        return total / count

    @staticmethod
    def backward(ctx, grad_output):
        grad_hidden, grad_weight = ctx.saved_tensors
        if FAULT:
            return grad_hidden, grad_weight, None, None
        return grad_hidden * grad_output, grad_weight * grad_output, None, None


class Model(nn.Module):
    """Predicts the next token, and with a second head the one after it."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.rnn = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.next = nn.Linear(WIDTH, VOCAB, bias=False)
        self.second = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, tokens):
        hidden = self.rnn(self.embed(tokens[:, :-2]))[0].flatten(0, 1)
        fused = FusedLinearCrossEntropy.apply
        return (
            fused(hidden, self.next.weight, tokens[:, 1:-1].flatten()),
            fused(hidden, self.second.weight, tokens[:, 2:].flatten()),
        )


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
losses = []
for _ in range(50):
    first, second = model(data[torch.randint(448, (32,))])
    loss = first + 0.2 * second
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
with torch.no_grad():
    metric("loss", model(data[448:])[0])
tell(model, losses)
