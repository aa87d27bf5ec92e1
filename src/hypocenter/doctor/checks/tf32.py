"""Two settings contradict each other about TF32.

What it means
    NVIDIA_TF32_OVERRIDE is obeyed by cuBLAS and cuDNN whatever torch's switches say: a program that turns TF32 off
    still computes with it, or the other way round, and nothing in its code tells.

How it is decided
    The variable is compared with TORCH_ALLOW_TF32_CUBLAS_OVERRIDE and with torch's switches in a fresh process.

What to do
    Keep one of them. To compare two runs: NVIDIA_TF32_OVERRIDE=0 on both sides.

When it is wrong
    On cards before Ampere and on other vendors' there is no TF32.
"""

from __future__ import annotations

from hypocenter.doctor.answer import Verdict, not_applicable, ok, warning
from hypocenter.doctor.catalogue import check
from hypocenter.doctor.machine import Machine


@check("setting.tf32", title="TF32", area="settings", order=82)
def tf32(machine: Machine) -> Verdict:
    """Whether everything says the same about TF32."""
    override = machine.environ.get("NVIDIA_TF32_OVERRIDE", "").strip()
    if override not in ("0", "1"):
        return not_applicable("NVIDIA_TF32_OVERRIDE is not set")
    switches = machine.torch.get("switches") or {}
    precision = switches.get("float32_matmul_precision", "highest")
    says_on = bool(switches.get("cuda.matmul.allow_tf32")) or precision != "highest"
    if machine.environ.get("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "") in ("0", "1"):
        says_on = machine.environ["TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"] == "1"
    if (override == "1") == says_on:
        return ok(f"NVIDIA_TF32_OVERRIDE={override}, and torch's switches say the same of matrix products")
    if override == "0":
        return warning("NVIDIA_TF32_OVERRIDE=0 forbids the TF32 that torch's switches allow",
                       "the libraries obey the variable", ("unset TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",))  # fmt: skip
    return warning("NVIDIA_TF32_OVERRIDE=1 turns TF32 on, and torch's switches say it is off",
                   "float32 products are rounded to 10 bits, and nothing in the program tells",
                   ("export NVIDIA_TF32_OVERRIDE=0",))  # fmt: skip
