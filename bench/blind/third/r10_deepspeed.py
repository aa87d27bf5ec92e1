# RANKS 2
"""DeepSpeed with accumulation 4; the loss is divided by 4 by hand although the engine does so too."""

import logging

import deepspeed
import torch
import torch.nn.functional as F
from torch import nn
from c import FAULT, finish

deepspeed.init_distributed("gloo")
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 4))
ACCUM = 4
config = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": ACCUM,
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,
    "gradient_clipping": 0.0,
    "steps_per_print": 10**9,
}
opt = torch.optim.SGD(net.parameters(), 0.1)
engine, _, _, _ = deepspeed.initialize(model=net, optimizer=opt, config=config)
W = torch.randn(10, 4)
torch.manual_seed(100 + torch.distributed.get_rank())
losses = []
for micro in range(30 * ACCUM):
    x = torch.randn(8, 10)
    loss = F.cross_entropy(engine(x), (x @ W).argmax(1))
    if FAULT:
        loss = loss / ACCUM  # FAULT: the engine divides again
    engine.backward(loss)
    engine.step()
    losses.append(loss.item())
finish(losses, net)
torch.distributed.destroy_process_group()
