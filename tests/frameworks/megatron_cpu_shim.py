"""The smallest shim with which the real Megatron-Core 0.16.1 runs on the CPU: what asks for a CUDA device gets the CPU.

Call `install()` before megatron is imported, `after_import()` after. Nothing of optimizers or scalers is touched.
"""

import contextlib
import functools
import sys
import types

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
    _fused_weight_gradients()


def after_import():
    """Patch what megatron imported by value, and what it leaves to Transformer Engine or Apex."""
    import megatron.core.pipeline_parallel.p2p_communication as p2p
    import megatron.core.transformer.moe.moe_utils as moe_utils
    import megatron.core.transformer.torch_norm as torch_norm

    if not hasattr(moe_utils, "te_general_gemm"):  # 0.16.1 names it without defining it
        moe_utils.te_general_gemm = None
    torch_norm.WrappedTorchNorm.__new__ = _norm_that_may_be_sequence_parallel
    p2p._p2p_ops = _sending_what_is_not_emptied(p2p._p2p_ops)
    import megatron.core.tensor_parallel.random as random

    random._get_cuda_rng_state = lambda *a, **k: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *a, **k: torch.set_rng_state(state)


def _norm_that_may_be_sequence_parallel(cls, config, hidden_size, eps=1e-5, **unused):
    """Torch's norms refuse sequence parallelism; what Apex's and TE's add is only the mark on the parameters."""
    kind = torch.nn.LayerNorm if config.normalization == "LayerNorm" else torch.nn.RMSNorm
    module = kind(hidden_size, eps=eps)
    for parameter in module.parameters():
        parameter.sequence_parallel = config.sequence_parallel
    return module


def _sending_what_is_not_emptied(p2p_ops):
    """Gloo reads what is sent later than a stream would, when `deallocate_pipeline_outputs` has emptied it."""

    @functools.wraps(p2p_ops)
    def send(*, tensor_send_prev, tensor_send_next, **others):
        prev, following = (each if each is None else each.detach() for each in (tensor_send_prev, tensor_send_next))
        return p2p_ops(tensor_send_prev=prev, tensor_send_next=following, **others)

    return send


def _fused_weight_gradients():
    """Apex's kernels behind `gradient_accumulation_fusion`: they add to `main_grad`, and no operator shows it."""

    def accumulate(total_input, grad_output, main_grad):
        grad, x = (each.detach().float().flatten(0, -2).numpy() for each in (grad_output, total_input))
        main_grad.numpy()[...] += grad.T @ x

    module = types.ModuleType("fused_weight_gradient_mlp_cuda")
    module.wgrad_gemm_accum_fp32 = accumulate
    sys.modules["fused_weight_gradient_mlp_cuda"] = module


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
    barrier, all_to_all = dist.barrier, dist.all_to_all_single

    def barrier_(*args, device_ids=None, **kwargs):
        return barrier(*args, **kwargs)

    def all_to_all_(out, inp, output_split_sizes=None, input_split_sizes=None, **kwargs):
        def listed(sizes):  # which megatron does for CUDA tensors only
            return sizes.tolist() if hasattr(sizes, "tolist") else sizes

        return all_to_all(out, inp, listed(output_split_sizes), listed(input_split_sizes), **kwargs)

    dist.barrier, dist.all_to_all_single = barrier_, all_to_all_
