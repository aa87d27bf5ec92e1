"""DeepSpeed operators are not built ahead, or cannot be built here.

What it means
    DeepSpeed compiles an operator when it is first used, on every node, with whatever toolkit is found there. A job of
    many nodes then starts slowly, or fails on one of them.

How it is decided
    As ds_report does: each operator's builder is asked whether it is installed and whether it could be built. It is a
    problem only where the operators that ZeRO takes (cpu_adam, fused_adam, utils) cannot be built on a machine with a
    GPU; others that cannot are listed.

What to do
    Build them ahead: the command is written out, with the architectures of this machine's GPUs. Build one wheel for all
    nodes of the same kind (second form).

When it is wrong
    When the optimizer is torch's own: ZeRO runs without these operators.
"""

from __future__ import annotations

import re

from hypocenter.doctor import building
from hypocenter.doctor.answer import Verdict, cannot_tell, not_applicable, ok, problem, warning
from hypocenter.doctor.catalogue import check
from hypocenter.doctor.hardware import of_devices
from hypocenter.doctor.machine import Machine

USUAL = ("cpu_adam", "fused_adam", "utils")  # what ZeRO and its offload take
_COLOUR = re.compile(r"\x1b\[[0-9;]*m|\[WARNING\]")


@check("toolkit.deepspeed-ops", title="DeepSpeed", order=48)
def deepspeed_ops(machine: Machine) -> Verdict:
    """Which operators are there, which could be, and how to build them."""
    version = machine.package("deepspeed")
    if not version:
        return not_applicable("DeepSpeed is not installed")
    ops = building.ops(machine)
    if not ops:
        why = str(machine.deepspeed.get("error") or "it said nothing")
        return cannot_tell(f"DeepSpeed {version} could not be asked for its operators", why, ("ds_report",))
    built = [name for name, op in ops.items() if op.get("built")]
    cannot = {name: _why(op) for name, op in ops.items() if not op.get("built") and not op.get("compatible")}
    usual = [name for name in USUAL if name in cannot]
    facts = {"built": built, "cannot": cannot, "accelerator": machine.deepspeed.get("accelerator")}
    counts = f"{version}, {len(built)} of {len(ops)} operators built ahead"
    if not building.reason(machine):
        more = f", {len(ops) - len(built) - len(cannot)} more can be built here" if len(built) < len(ops) else ""
        return ok(f"{counts}{more}", **facts)
    if usual:
        return problem(
            f"{counts}; {', '.join(usual)} cannot be built here", cannot[usual[0]] or "its builder says no",
            build_command(machine), **facts,
        )  # fmt: skip
    missing = [name for name in USUAL if name in ops and name not in built]
    if not missing:
        return ok(counts, **facts)
    return warning(
        f"{counts}; {', '.join(missing)} will be compiled when first used", "on every node, with what is found there",
        build_command(machine), **facts,
    )  # fmt: skip


def build_command(machine: Machine) -> tuple[str, ...]:
    """Return the lines that build DeepSpeed with its usual operators for the GPUs of this machine."""
    listed = ";".join(of_devices(machine.torch.get("devices") or []))
    wanted = ["DS_BUILD_CPU_ADAM=1", "DS_BUILD_FUSED_ADAM=1"]
    wanted += ["DS_BUILD_UTILS=1"] if "utils" in building.ops(machine) or not building.ops(machine) else []
    wanted += ["DS_BUILD_AIO=1"] if building.ops(machine).get("async_io", {}).get("compatible") else []
    variables = " ".join(([f'TORCH_CUDA_ARCH_LIST="{listed}"'] if listed else []) + wanted)
    return (
        "git clone https://github.com/deepspeedai/DeepSpeed && cd DeepSpeed && rm -rf build",
        f"{variables} \\",
        "    pip install . --no-build-isolation --no-cache-dir -v 2>&1 | tee build.log",
        "# or one wheel for all nodes of this kind: the same variables, and python setup.py build_ext -j8 bdist_wheel",
    )


def _why(op: dict[str, object]) -> str:
    return " ".join(_COLOUR.sub("", str(op.get("why") or "")).split())
