"""What the real torchtitan 0.3.0 needs to train on the CPU, with gloo, and on torch 2.13 instead of a nightly one.

Call `install()` before torchtitan's trainer is imported, `after_building(model)` once it has built the model. Replaced:

    minimal_async_ep.kernels   Triton kernels of an expert-parallel dispatch that the dense model never calls (there is
                               no Triton to compile them)
    tools.utils                the device is the CPU; memory statistics are empty
    flex_attention             as it is, and its block masks, instead of compiled: that has no backward on CPUs
    dist.barrier               takes no device_ids on gloo
    dist.set_timeout           torch 2.13 has it under a private name
    reductions                 sums: gloo has no PREMUL_SUM; torchtitan's factor is 1

And the job's configuration asks for spmd_backend "partial_dtensor": "spmd_types", the default, needs a nightly FSDP2.

Trainer, loss, optimizer, schedule, FSDP2 with bf16, activation checkpointing and clipping are torchtitan's own.
"""

import os
import sys
import types

import torch
import torch.distributed as dist

KERNELS = "torchtitan.distributed.minimal_async_ep.kernels"


class _Absent(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)


class _Cpu(types.ModuleType):
    """torch.cpu, with what torchtitan asks of a device beyond that."""

    def __getattr__(self, name):
        return getattr(torch.cpu, name)

    def get_device_name(self, device):
        return "CPU"

    def get_device_properties(self, device):
        return types.SimpleNamespace(total_memory=1 << 30)

    def memory_stats(self, device):
        return {}

    def current_device(self):
        return 0

    def reset_peak_memory_stats(self): ...
    def empty_cache(self): ...
    def synchronize(self): ...
    def set_device(self, device): ...


def install():
    if site := os.environ.get("TITAN_SITE"):  # of an environment of its own: behind all else
        sys.path.append(site)
    sys.modules[KERNELS] = _Absent(KERNELS)
    _device()
    _collectives()
    _attention()


def after_building(model):
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)


def _device():
    import torchtitan.tools.utils as utils

    utils.device_type, utils.device_module = "cpu", _Cpu("cpu")
    utils.get_local_device = lambda: torch.device("cpu")


def _collectives():
    barrier = dist.barrier
    dist.barrier = lambda *args, device_ids=None, **kwargs: barrier(*args, **kwargs)
    if not hasattr(dist, "set_timeout"):
        dist.set_timeout = dist.distributed_c10d._set_pg_timeout


def _attention():
    import torch.nn.attention.flex_attention as flex
    import torchtitan.models.common.attention as attention

    flex._validate_device = lambda *tensors: None
    attention.FlexAttention._compiled_flex_attn = staticmethod(flex.flex_attention)
    attention._compiled_create_block_mask = flex.create_block_mask
