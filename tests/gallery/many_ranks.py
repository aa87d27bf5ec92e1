"""What scripts of several ranks share: begin and end of a job, a small model and its data, what is printed.

Each script can still be run by itself: `torchrun --standalone --nproc-per-node 2 tests/gallery/g01_....py`.
"""

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh


def run(main, **axes):
    """Call `main` on each rank, with a mesh of these axes (tp=2) if there are any; free all that it made, then part."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    main(*([init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))] if axes else []))
    gc.collect()  # DDP's and FSDP's cycles hold on to the group
    dist.barrier()
    dist.destroy_process_group()


def perceptron():
    """The model that most of them train, the same on all ranks."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))


def batches(n_steps, *, n_rows=16, n_columns=8, seed=None):
    """(step, random rows): of this rank's own, unless a seed is given that all share."""
    drawn = torch.Generator().manual_seed(1 + dist.get_rank() if seed is None else seed)
    for step in range(n_steps):
        yield step, torch.randn(n_rows, n_columns, generator=drawn)


def error(model, x):
    """Mean squared distance from the running sums of the rows, which a perceptron can learn."""
    return (model(x) - x.cumsum(-1)).pow(2).mean()


def average_gradients(parameters):
    """By hand, as without DDP."""
    for parameter in parameters:
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def over_two_stages(model, x, shape, loss_of, target):
    """Rank 0 sends on what its stage makes of `x` and gets the gradient; rank 1, whose stage has the loss, gives it."""
    if dist.get_rank() == 0:
        hidden = model(x)
        dist.send(hidden.detach(), dst=1)
        grad = torch.empty_like(hidden)
        dist.recv(grad, src=1)
        hidden.backward(grad)
        return None
    hidden = torch.empty(shape)
    dist.recv(hidden, src=0)
    loss = loss_of(model(hidden.requires_grad_()), target)
    loss.backward()
    dist.send(hidden.grad, dst=0)
    return loss


def norm_of_gradients(model):
    """Of this rank alone."""
    return torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])


def finish(step, loss, grad, optimizer, *, by=0):
    """Rank `by` prints; then the update."""
    if dist.get_rank() == by:
        print(f"step {step} loss {loss.item():.6f} grad {float(grad):.6f}", flush=True)
    optimizer.step()
    optimizer.zero_grad()


class Copy(torch.autograd.Function):
    """The same forward on all ranks; backward adds up what they give."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad


class Reduce(torch.autograd.Function):
    """Adds up forward; the same gradient to all."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


class ParallelBlock(nn.Module):
    """A residual block of 16 hidden units, half of them on each of two ranks; all ranks have the same norm."""

    def __init__(self, enter=Copy, leave=Reduce, dropout=0.0):
        super().__init__()
        self.enter, self.leave = enter.apply, leave.apply
        self.norm, self.drop = nn.LayerNorm(8), nn.Dropout(dropout) if dropout else nn.Identity()
        self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 8, bias=False)
        for dim, shard in ((0, self.up.weight), (0, self.up.bias), (1, self.down.weight)):
            shard.tensor_model_parallel, shard.partition_dim = True, dim

    def forward(self, x):
        return x + self.drop(self.leave(self.down(torch.relu(self.up(self.enter(self.norm(x)))))))
