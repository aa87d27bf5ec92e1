"""Deterministic algorithms are on, and CUBLAS_WORKSPACE_CONFIG does not let cuBLAS follow.

What it means
    With torch.use_deterministic_algorithms(True) the first matrix product raises an error: `Deterministic behavior was
    enabled ... but this operation is not deterministic because it uses CuBLAS`. cuBLAS repeats to the bit only with a
    workspace of a fixed size, given before the process starts.

How it is decided
    The variable must be :4096:8 or :16:8 (other sizes do not count for torch). It is a problem if a fresh process has
    deterministic algorithms on, or if the value cannot be read; if it is not set, nothing is said.

What to do
    Export it in the script that starts the job, or use `hypocenter run --deterministic`.

When it is wrong
    When the program sets it before it makes its first CUDA call.
"""

from __future__ import annotations

import re

from hypocenter.doctor.answer import Verdict, not_applicable, ok, problem, warning
from hypocenter.doctor.catalogue import check
from hypocenter.doctor.machine import Machine

GOOD = (":4096:8", ":16:8")


@check("setting.cublas-workspace", title="cuBLAS workspace", area="settings", order=80)
def cublas_workspace(machine: Machine) -> Verdict:
    """Whether cuBLAS may repeat where torch demands it."""
    if not machine.torch.get("cuda"):
        return not_applicable("torch was built without CUDA")
    value = machine.environ.get("CUBLAS_WORKSPACE_CONFIG", "")
    is_demanded = bool((machine.torch.get("switches") or {}).get("deterministic_algorithms"))
    fix = (f"export CUBLAS_WORKSPACE_CONFIG={GOOD[0]}",)
    if value in GOOD:
        return ok(f"CUBLAS_WORKSPACE_CONFIG={value}: cuBLAS repeats to the bit")
    if is_demanded:
        what = f"deterministic algorithms are on, and CUBLAS_WORKSPACE_CONFIG is {value or 'not set'}"
        return problem(what, "the first matrix product raises an error", fix)
    if not value:
        return not_applicable("deterministic algorithms are off, and CUBLAS_WORKSPACE_CONFIG is not set")
    if not re.fullmatch(r"(:\d+:\d+)+", value):
        return warning(f"CUBLAS_WORKSPACE_CONFIG={value!r} is not of the form :SIZE:COUNT", "cuBLAS ignores it", fix)
    return warning(f"CUBLAS_WORKSPACE_CONFIG={value} is not {' or '.join(GOOD)}",
                   "torch.use_deterministic_algorithms does not take it", fix)  # fmt: skip
