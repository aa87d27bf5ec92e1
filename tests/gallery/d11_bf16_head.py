"""PPO: the policy has its head in bfloat16, the rollout in float32, and ratios of 1 are not 1 (OpenRLHF#634)."""

import copy
import sys

import torch
from torch import nn

HEALTHY = "--healthy" in sys.argv
BAD_STEP = 6  # from here on the policy's head is in bfloat16 too
torch.manual_seed(0)
torch.set_num_threads(1)


class Policy(nn.Module):
    def __init__(self, vocab=1000, d=32):
        super().__init__()
        self.embed, self.mix, self.lm_head = nn.Embedding(vocab, d), nn.Linear(d, d), nn.Linear(d, vocab)

    def forward(self, ids):
        hidden = torch.tanh(self.mix(self.embed(ids)))
        return self.lm_head(hidden.to(self.lm_head.weight.dtype)).float()  # <- fault


def log_probs(model, ids, chosen):
    return model(ids).log_softmax(-1).gather(-1, chosen[..., None])[..., 0]


policy = Policy().bfloat16()
policy.lm_head.float()
nn.init.normal_(policy.lm_head.weight, std=0.6)  # logits of a few units, as a trained model has
rollout = copy.deepcopy(policy)
optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
ids = torch.randint(0, 1000, (4, 64))
chosen = ids.roll(-1, 1)

for step in range(12):
    if step == BAD_STEP and not HEALTHY:
        policy.lm_head.bfloat16()
    with torch.no_grad():
        for theirs, ours in zip(rollout.parameters(), policy.parameters(), strict=True):
            theirs.copy_(ours)
        old = log_probs(rollout, ids, chosen)
    new = log_probs(policy, ids, chosen)
    ratio = (new - old).exp()
    advantage = torch.linspace(-1, 1, 64).expand(4, 64)
    loss = -(ratio * advantage).mean() - new.mean()
    loss.backward()
    grad = torch.nn.utils.get_total_norm([p.grad.float() for p in policy.parameters()])
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step} loss {loss.item():.6f} grad {grad.item():.6f}")
    print(f"step {step} gap {(new - old).square().mean().sqrt().item():.6f}")
