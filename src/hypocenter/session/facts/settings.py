"""Switches outside modules and optimizers that change numbers: precision, determinism, threads, ranks."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from typing import Any

import torch

from hypocenter.nouns import Place
from hypocenter.session.facts.plain import NOT_PLAIN, plain
from hypocenter.tap.state import Ambient, accelerator_type
from hypocenter.unwarned import unwarned

_ENVIRONMENT = (
    "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "NCCL_ALGO", "NCCL_PROTO",
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "MKL_CBWR", "CUDA_DEVICE_MAX_CONNECTIONS", "NVTE_ALLOW_NONDETERMINISTIC_ALGO",
    "HCCL_DETERMINISTIC", "LCCL_DETERMINISTIC", "ASCEND_LAUNCH_BLOCKING", "PYTORCH_TUNABLEOP_ENABLED", "HCCL_ALGO",
    "HCCL_OP_EXPANSION_MODE", "CLOSE_MATMUL_K_SHIFT", "ATB_MATMUL_SHUFFLE_K_ENABLE", "INF_NAN_MODE_ENABLE",
    "INF_NAN_MODE_FORCE_DISABLE", "TORCH_NPU_USE_COMPATIBLE_IMPL", "TORCH_NPU_LEGACY_IMPL_LIST",
)  # fmt: skip

_READ: dict[str, Callable[[], Any]] = {
    "torch": lambda: torch.__version__,
    "python": platform.python_version,
    "default_dtype": torch.get_default_dtype,
    "num_threads": torch.get_num_threads,
    "num_interop_threads": torch.get_num_interop_threads,
    "deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
    "deterministic_warn_only": torch.is_deterministic_algorithms_warn_only_enabled,
    "float32_matmul_precision": torch.get_float32_matmul_precision,
    "tf32_matmul": lambda: _tf32(torch.backends.cuda.matmul),
    "tf32_cudnn": lambda: _tf32(torch.backends.cudnn),
    "fp16_reduced_precision_reduction": lambda: torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
    "bf16_reduced_precision_reduction": lambda: torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
    "cudnn_enabled": lambda: torch.backends.cudnn.enabled,
    "cudnn_benchmark": lambda: torch.backends.cudnn.benchmark,
    "cudnn_deterministic": lambda: torch.backends.cudnn.deterministic,
    "mkldnn": lambda: torch._C._get_mkldnn_enabled(),
    "sdpa_flash": torch.backends.cuda.flash_sdp_enabled,
    "sdpa_mem_efficient": torch.backends.cuda.mem_efficient_sdp_enabled,
    "sdpa_math": torch.backends.cuda.math_sdp_enabled,
    "sdpa_cudnn": torch.backends.cuda.cudnn_sdp_enabled,
    "device": lambda: accelerator_type() or "cpu",
    "npu_hf32_matmul": lambda: _npu().matmul.allow_hf32,
    "npu_hf32_conv": lambda: _npu().conv.allow_hf32,
    "npu_inf_nan": lambda: _npu().utils.is_support_inf_nan(),  # False: overflows saturate
    "torch_npu": lambda: sys.modules["torch_npu"].__version__,
    "cann": lambda: _npu().utils.get_cann_version(),
    "cuda": lambda: torch.version.cuda,
    "cudnn": lambda: torch.backends.cudnn.version() if torch.version.cuda else None,
}


def settings(place: Place, ambient: Ambient | None, *, n_microbatches: int, loss_scale: float | None) -> dict[str, Any]:
    """By name; what this torch does not know is left out.

    Args:
        ambient: in which the outermost module was called; None when no call was seen.
    """
    found: dict[str, Any] = {}
    with unwarned():  # torch renames these switches, and says so to who reads the old ones
        for name, read in _READ.items():
            try:
                value = plain(read())
            except Exception:  # another version of torch
                continue
            if value is not NOT_PLAIN:
                found[name] = value
    found["autocast"] = None
    for kind, enabled, dtype in ambient.autocast if ambient is not None else ():
        if enabled:
            found |= {"autocast": str(dtype).removeprefix("torch."), "autocast_device": kind}
    found |= {f"env.{name}": os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    found["world_size"] = place.world_size
    found |= {axis: len(ranks) for axis, ranks in place.groups.items()}
    return found | {"accumulation_steps": n_microbatches, "loss_scale": loss_scale}


def _npu() -> Any:
    """What torch_npu adds to torch; AttributeError without it."""
    module: Any = torch
    return module.npu


def _tf32(backend: Any) -> bool:
    """Whether float32 is multiplied with 10 bits of mantissa."""
    if hasattr(backend, "fp32_precision"):  # torch 2.9: the older switch refuses to be read when this one was set
        return backend.fp32_precision == "tf32"
    return bool(backend.allow_tf32)
