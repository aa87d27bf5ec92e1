"""Megatron-core schedule with 4 micro-batches: the loss function divides by 4, and the schedule does too."""

import torch
from kit import FAULT, sentences, tell
from mega import start
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.pipeline_parallel import get_forward_backward_func

PARTS = 4
model, config = start(seed=23)
config.finalize_model_grads_func = finalize_model_grads
wrapped = DistributedDataParallel(config, DistributedDataParallelConfig(), model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
data = torch.tensor([s[:17] for s in sentences(400, 17, 20, 64)])
mask = torch.triu(torch.ones(1, 1, 16, 16, dtype=torch.bool), 1)
places = torch.arange(16).expand(4, 16)
run = get_forward_backward_func()


def batches():
    while True:
        yield data[torch.randint(0, 400, (4,))]


def step_of(source, net):
    batch = next(source)
    out = net(batch[:, :-1].contiguous(), places, mask, labels=batch[:, 1:].contiguous())

    def loss_of(per_token):
        loss = per_token.mean()
        if FAULT:
            loss = loss / PARTS
        return loss, {"lm loss": loss.detach()}

    return out, loss_of


source = batches()
losses = []
for _ in range(30):
    wrapped.zero_grad_buffer()
    optimizer.zero_grad()
    told = run(
        forward_step_func=step_of,
        data_iterator=source,
        model=[wrapped],
        num_microbatches=PARTS,
        seq_length=16,
        micro_batch_size=4,
        forward_only=False,
    )
    for p in model.parameters():
        p.grad = p.main_grad
    optimizer.step()
    losses.append(sum(t["lm loss"] for t in told) / PARTS)
tell(model, losses)
