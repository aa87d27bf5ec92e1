# LoRA by hand below a reentrant checkpoint whose input needs no gradient: the first block's adapters get none
import torch, torch.nn as nn
from torch.utils.checkpoint import checkpoint
from transformers import BertConfig, BertModel
from c import FAULT, seed, final

seed()


class LoRA(nn.Module):
    def __init__(self, lin, r=4):
        super().__init__()
        self.base = lin.requires_grad_(False)
        self.A = nn.Parameter(torch.randn(r, lin.in_features) * 0.1)
        self.B = nn.Parameter(torch.zeros(lin.out_features, r))

    def forward(self, x):
        return self.base(x) + x @ self.A.t() @ self.B.t()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.bert = BertModel(
            BertConfig(
                vocab_size=50,
                hidden_size=32,
                num_hidden_layers=3,
                num_attention_heads=2,
                intermediate_size=64,
                hidden_dropout_prob=0,
                attention_probs_dropout_prob=0,
            )
        )
        self.bert.requires_grad_(False)
        for l in self.bert.encoder.layer:
            l.attention.self.query = LoRA(l.attention.self.query)
            l.attention.self.value = LoRA(l.attention.self.value)
        self.head = nn.Linear(32, 3)

    def forward(self, x):
        h = self.bert.embeddings(x)
        if not FAULT:
            h.requires_grad_(True)
        h = checkpoint(self.block, h, use_reentrant=True)
        return self.head(h.mean(1))

    def block(self, h):
        for l in self.bert.encoder.layer:
            h = l(h)
            h = h[0] if isinstance(h, tuple) else h
        return h


net = Net()
opt = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], 3e-3)
g = torch.Generator().manual_seed(1)
for step in range(15):
    x = torch.randint(0, 50, (8, 12), generator=g)
    y = x[:, 0] % 3
    loss = nn.functional.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item())
final(loss, net)
