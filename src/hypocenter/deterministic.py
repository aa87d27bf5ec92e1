"""What makes a program repeat itself and needs no torch: environment variables, seeds of Python, MindSpore's switch.

The variables must be set before the process starts, so `hypocenter run --deterministic` sets them for its child; the
rest is done at the import of `random`, `numpy` and `mindspore` (boot/post_import.py), or by `hypocenter.seed_all`.
Standard library only: it is imported in every process of a job.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from typing import Any

SEED = 42
"""When none is given: the one that the seeds of most training scripts are."""

SEEDS = 1 << 32
"""Seeds are below it: what PYTHONHASHSEED and NumPy take."""

VARIABLES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("CUBLAS_WORKSPACE_CONFIG", ":4096:8", (":16:8",)),  # NVIDIA cuBLAS, "Results reproducibility"
    ("MKL_CBWR", "AUTO", ("COMPATIBLE", "SSE4_2", "AVX", "AVX2", "AVX512")),  # oneMKL, conditional reproducibility
    ("NCCL_ALGO", "Ring", ("Tree", "CollnetDirect", "CollnetChain", "^NVLS")),  # what Megatron's --deterministic-mode
    ("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "0", ()),  # Transformer Engine              asks for
    ("FLASH_ATTENTION_DETERMINISTIC", "1", ()),  # read by transformers
    ("TORCHINDUCTOR_DETERMINISTIC", "1", ()),  # no choice of kernels by the clock
    ("HCCL_DETERMINISTIC", "true", ("strict", "True", "TRUE")),  # Ascend: reductions over cards
    ("LCCL_DETERMINISTIC", "1", ()),
    ("ATB_LLM_LCOC_ENABLE", "0", ()),
    ("CLOSE_MATMUL_K_SHIFT", "1", ()),
    ("ATB_MATMUL_SHUFFLE_K_ENABLE", "0", ()),
    ("ASCEND_LAUNCH_BLOCKING", "1", ()),
)
"""(name, value, other values of the user's that are as good)."""

seeded: set[str] = set()
"""What was seeded at its import: whatever has been drawn or seeded since is the program's own."""


def environment(environ: Mapping[str, str], seed: int) -> dict[str, str]:
    """Return the variables that must be set, or changed, for a process to be deterministic.

    Args:
        environ: as it is; a value in it that serves as well is left.
    """
    wanted = {name: value for name, value, good in VARIABLES if environ.get(name) not in (value, *good)}
    if not environ.get("PYTHONHASHSEED", "").isdecimal():  # the order of sets of strings; "random" by default
        wanted["PYTHONHASHSEED"] = str(seed)
    return wanted


def at_import(module: str, seed: int, *, deterministic: bool) -> None:
    """Seed a module that has just been imported (`random`, `numpy` or `mindspore`), before anything is drawn."""
    if module == "random":
        seed_random(seed)
    elif module == "numpy":
        seed_numpy(seed)
    elif module == "mindspore":
        switch_mindspore(seed, deterministic=deterministic)
    seeded.add(module)


def seed_random(seed: int) -> None:
    """Seed Python's own generator."""
    import random

    random.seed(seed)


def seed_numpy(seed: int) -> None:
    """Seed NumPy's global generator, if NumPy is imported."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)


_OURS = "is_hypocenters"


def switch_mindspore(seed: int, *, deterministic: bool) -> None:
    """Seed MindSpore and, when wanted, switch it to deterministic; do nothing where it is not imported."""
    mindspore: Any = sys.modules.get("mindspore")
    if mindspore is None:
        return
    mindspore.set_seed(seed)  # of initializers, random operators and data sets; and NumPy's
    if hasattr(mindspore, "manual_seed"):  # of `mint` (MindSpore 2.3 and later): begins at a number of the system's
        mindspore.manual_seed(seed)
    if deterministic and hasattr(mindspore, "set_deterministic"):  # MindSpore 2.5 and later
        _set_once(mindspore)
    elif deterministic:
        mindspore.set_context(deterministic="ON")


def _set_once(mindspore: Any) -> None:
    """Switch it on so that the program may do so again later, which MindSpore otherwise makes an error."""
    own: Any = mindspore.set_deterministic
    if hasattr(own, _OURS):
        return

    @functools.wraps(own)
    def set_deterministic(deterministic: bool) -> None:
        try:
            own(deterministic)
        except RuntimeError:
            if not deterministic:
                raise

    own(True)
    setattr(set_deterministic, _OURS, True)
    mindspore.set_deterministic = set_deterministic
