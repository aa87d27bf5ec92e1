"""The smallest shim with which the real Megatron-Core 0.16.1 runs on the CPU: what asks for a CUDA device gets the CPU.

Call `install()` before megatron is imported, `after_import()` after. Nothing of optimizers or scalers is touched.
"""

import contextlib
import functools

import torch
import torch.distributed as dist

CPU = torch.device("cpu")
FACTORIES = (
    "tensor", "zeros", "ones", "empty", "full", "arange", "rand", "randn", "randint", "zeros_like", "ones_like",
    "empty_like", "as_tensor", "linspace", "eye", "tril", "triu",
)  # fmt: skip


def install():
    _device_queries()
    _factories()
    _tensors()
    _random_state()
    _streams()
    _collectives()


def after_import():
    """Patch what megatron imported by value."""
    import megatron.core.tensor_parallel.random as random

    random._get_cuda_rng_state = lambda *a, **k: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *a, **k: torch.set_rng_state(state)


def _device_queries():
    torch.cuda.current_device = lambda: CPU  # a device object is accepted by every device= argument
    torch.cuda.set_device = lambda device: None
    torch.cuda.synchronize = lambda *a, **k: None
    torch.cuda.empty_cache = lambda: None


def _factories():
    def redirected(factory):
        @functools.wraps(factory)
        def wrapper(*args, **kwargs):
            if str(kwargs.get("device", "")).startswith("cuda"):
                kwargs["device"] = CPU
            if kwargs.get("pin_memory"):
                kwargs["pin_memory"] = False
            return factory(*args, **kwargs)

        return wrapper

    for name in FACTORIES:
        setattr(torch, name, redirected(getattr(torch, name)))


def _tensors():
    torch.Tensor.cuda = lambda self, *a, **k: self
    torch.nn.Module.cuda = lambda self, *a, **k: self
    original = torch.Tensor.type

    def type_(self, *args, **kwargs):  # the optimizers compare this string with torch.cuda.FloatTensor and the like
        if args or kwargs:
            return original(self, *args, **kwargs)
        return original(self).replace("torch.", "torch.cuda.", 1)

    torch.Tensor.type = type_


def _random_state():
    torch.cuda.get_rng_state = lambda *a, **k: torch.get_rng_state()
    torch.cuda.set_rng_state = lambda state, *a, **k: torch.set_rng_state(state)
    torch.cuda.random.get_rng_state = torch.cuda.get_rng_state
    torch.cuda.random.set_rng_state = torch.cuda.set_rng_state
    torch.cuda.manual_seed = lambda seed: torch.manual_seed(seed)


class _Stream:
    def __init__(self, *a, **k): ...
    def wait_stream(self, other): ...
    def wait_event(self, event): ...
    def synchronize(self): ...
    def record_event(self, event=None):
        return event or _Event()


class _Event(_Stream):
    def record(self, *a): ...
    def wait(self, *a): ...
    def query(self):
        return True

    def elapsed_time(self, other):
        return 0.0


def _streams():
    torch.cuda.Stream, torch.cuda.Event = _Stream, _Event
    torch.cuda.current_stream = torch.cuda.default_stream = lambda *a: _Stream()
    torch.cuda.stream = lambda stream: contextlib.nullcontext()
    torch.Tensor.record_stream = lambda self, stream: None
    torch.cuda.nvtx.range_push = torch.cuda.nvtx.range_pop = lambda *a: None


def _collectives():
    barrier = dist.barrier

    def barrier_(*args, device_ids=None, **kwargs):
        return barrier(*args, **kwargs)

    dist.barrier = barrier_
