# RANKS 2
# deepspeed: the user divides by the accumulation steps, the engine does it again
import torch, torch.nn as nn, deepspeed, torch.distributed as dist
from c import FAULT, seed, final

deepspeed.init_distributed("gloo")
rank = dist.get_rank()
seed()
net = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4))
opt = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
engine, opt, _, _ = deepspeed.initialize(
    model=net,
    optimizer=opt,
    config={
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": 4,
        "zero_optimization": {"stage": 1},
        "zero_allow_untested_optimizer": True,
    },
)
g = torch.Generator().manual_seed(10 + rank)
for i in range(64):
    x = torch.randn(8, 16, generator=g)
    y = x[:, :4].argmax(1)
    loss = nn.functional.cross_entropy(engine(x), y)
    if FAULT:
        loss = loss / 4
    engine.backward(loss)
    engine.step()
    if rank == 0:
        print(i, loss.item())
final(loss, net)
dist.destroy_process_group()
