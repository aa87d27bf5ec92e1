# transformers: gradient accumulation over micro-batches of unequal numbers of tokens, mean of means
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from c import FAULT, seed, final

seed()
K = 4
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
)
opt = torch.optim.AdamW(model.parameters(), 2e-3)
g = torch.Generator().manual_seed(1)


def micro():
    n = int(torch.randint(3, 40, (), generator=g))
    x = (torch.randint(0, 64, (4, 1), generator=g) + torch.arange(40) * 3) % 64
    y = x.clone()
    y[:, n:] = -100
    return x, y


for step in range(16):
    window = [micro() for _ in range(K)]
    total = sum(int((y[:, 1:] != -100).sum()) for _, y in window)
    for x, y in window:
        if FAULT:
            loss = model(input_ids=x, labels=y).loss / K
        else:
            loss = model(input_ids=x, labels=y, num_items_in_batch=total).loss
        loss.backward()
    opt.step()
    opt.zero_grad()
    print(step, loss.item())
final(loss, model)
