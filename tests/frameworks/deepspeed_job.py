"""Trains a small fp16 model with real DeepSpeed on the CPU: healthy steps, one overflow, healthy steps again.

    torchrun --nproc-per-node 2 deepspeed_job.py --stage 2 --blow 3
    torchrun --nproc-per-node 2 deepspeed_job.py --stage 2 --precision bf16 --plant gradient --at 3
    torchrun --nproc-per-node 2 deepspeed_job.py --stage 2 --usual --plant activation gradient --at 3 5

Prints a digest of the parameters' bits (of this rank's parts for stage 3, which scatters them).
"""

import argparse
import atexit
import gc
import hashlib
import os

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # a minute of compiling, for what inference alone calls
PLANTS = ("gradient", "activation")
BUCKET = 300  # elements: a block of the model, so that there are several buckets


class Net(nn.Module):
    divisor = 1.0  # of what the second block gives
    calls_left = -1  # then it raises

    def __init__(self, dropout):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.embed = nn.Linear(8, 16)
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.head = nn.Linear(16, 1)
        self.gain = nn.Parameter(torch.ones(1))  # its gradient alone is large at the planted step

    def forward(self, x, boost):
        self.calls_left -= 1
        if self.calls_left == -1:
            raise RuntimeError("this step has been computed already")
        hidden = torch.tanh(self.embed(x))
        first, second = self.blocks
        hidden = hidden + self.dropout(torch.tanh(first(hidden)))
        hidden = hidden + torch.tanh(second(hidden)) / torch.full_like(hidden, self.divisor)
        return self.head(hidden).float().pow(2).mean() + (self.gain.float() * boost - boost).mean()


def say(line):
    os.write(1, f"{line}\n".encode())  # in one piece: the ranks share a pipe


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--stage", type=int, default=0)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--blow", type=int, default=-1, help="step at which rank 1 (or 0, alone) overflows")
    parser.add_argument("--boost", type=float, default=400.0, help="its gradient, before the loss scale")
    parser.add_argument("--static", type=float, default=0.0, help="static loss scale")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--offload", action="store_true", help="optimizer state in host memory")
    parser.add_argument("--precision", choices=("fp16", "bf16"), default="fp16")
    parser.add_argument("--usual", action="store_true", help="overlap_comm, several buckets, clipping, dropout")
    parser.add_argument("--plant", choices=PLANTS, nargs="*", default=(), help="what gets a NaN on one rank")
    parser.add_argument("--at", type=int, nargs="*", default=(), help="the step of each plant")
    parser.add_argument("--on", type=int, default=1, help="rank of the plant")
    parser.add_argument("--refuse-again", action="store_true", help="rank 1 cannot compute a step twice")
    parser.add_argument("--local_rank", type=int)
    return parser.parse_args()


def configuration(a):
    fp16 = {
        "enabled": True, "loss_scale": a.static, "initial_scale_power": 8, "loss_scale_window": 2, "hysteresis": 1,
        "min_loss_scale": 1,
    }  # fmt: skip
    offload = {"offload_optimizer": {"device": "cpu"}} if a.offload else {}
    whole = {"stage3_param_persistence_threshold": 0} if a.stage == 3 else {}  # else small ones are never scattered
    usual = {"overlap_comm": True, "contiguous_gradients": True, "reduce_bucket_size": BUCKET} if a.usual else {}
    return {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": a.accumulate,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
        "zero_optimization": {"stage": a.stage, **whole, **offload, **usual},
        "gradient_clipping": 1.0 if a.usual else 0.0,
        "zero_force_ds_cpu_optimizer": False,
        **({"fp16": fp16} if a.precision == "fp16" else {"bf16": {"enabled": True}}),
    }


def plant_gradient(model, step, a):
    """The second block's weight gets one NaN into its gradient, on one rank alone, at the planted step."""

    def spoil(grad):
        if not is_planted("gradient", step[0], a):
            return None
        factor = torch.ones_like(grad)
        factor.view(-1)[3] = float("nan")
        return grad * factor

    if dist.get_rank() == a.on:
        model.blocks[1].weight.register_hook(spoil)


def is_planted(what, step, a):
    return dist.get_rank() == a.on and (what, step) in zip(a.plant, a.at, strict=True)


def own_part(parameter):
    """All of it; for stage 3 this rank's part without the padding behind it, whose bits are anybody's."""
    if not hasattr(parameter, "ds_tensor"):
        return parameter
    part = parameter.ds_tensor
    return part.flatten()[: max(0, parameter.ds_numel - part.numel() * dist.get_rank())]


def main():
    a = arguments()
    torch.set_num_threads(1)
    # DeepSpeed refuses fp16 on a CPU without the instructions for it; torch computes fp16 on any.
    deepspeed.get_accelerator().is_fp16_supported = lambda: True
    deepspeed.init_distributed("gloo")
    torch.manual_seed(0)
    model = Net(dropout=0.1 if a.usual else 0.0)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=configuration(a))
    generator = torch.Generator().manual_seed(1 + dist.get_rank())
    dtype = torch.float16 if a.precision == "fp16" else torch.bfloat16
    victim = dist.get_world_size() - 1
    now = [0]
    if "gradient" in a.plant:
        plant_gradient(model, now, a)
    for step in range(a.steps):
        now[0] = step
        model.divisor = 0.0 if is_planted("activation", step, a) else 1.0
        model.calls_left = a.accumulate if a.refuse_again and dist.get_rank() == 1 else -1
        for _ in range(a.accumulate):
            boost = a.boost if step == a.blow and dist.get_rank() == victim else 0.0
            x = torch.randn(4, 8, generator=generator).to(dtype)
            loss = engine(x, boost)
            engine.backward(loss)
            engine.step()
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(own_part(parameter).detach().float().numpy().tobytes())
    say(f"rank {dist.get_rank()} digest {digest.hexdigest()}")


if __name__ == "__main__":
    main()
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()
    atexit._run_exitfuncs()
    os._exit(0)  # gloo's threads now and then abort a normal exit after all work is done
