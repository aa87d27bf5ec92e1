"""torch, torch_npu and CANN do not belong together.

What it means
    torch_npu is compiled for one release of torch and one of CANN. Another torch ends with `undefined symbol` at
    import; another CANN lacks operators, or computes some of them otherwise.

How it is decided
    By the table of Ascend's own README. A combination that is not in it is answered with "cannot tell"; another
    torch than torch_npu is named for is a problem in any case.

What to do
    Install the torch_npu of the table for your torch and CANN.

When it is wrong
    When torch_npu was built from source for this combination.
"""

from __future__ import annotations

from hypocenter.doctor import ascend
from hypocenter.doctor.answer import Verdict, cannot_tell, not_applicable, ok, problem
from hypocenter.doctor.catalogue import check
from hypocenter.doctor.machine import Machine, version_numbers


@check("toolkit.torch-npu", title="torch_npu", order=62)
def torch_npu(machine: Machine) -> Verdict:
    """Whether torch, torch_npu and CANN are a listed combination."""
    have = machine.package("torch-npu")
    if not have:
        return not_applicable("torch_npu is not installed")
    torch = (machine.package("torch") or str(machine.torch.get("version") or "")).partition("+")[0]
    cann = ascend.active(machine)
    release = cann.version if cann is not None else ""
    meant = ascend.torch_npu_for(torch, release)
    fix = (f"pip install torch-npu=={meant}",) if meant else ()
    if torch and version_numbers(torch) != version_numbers(have):
        wanted = ".".join(map(str, version_numbers(have)))
        return problem(f"torch_npu {have} is for torch {wanted}, installed is {torch}",
                       "its import ends with an undefined symbol", fix, torch=torch, torch_npu=have)  # fmt: skip
    if error := str((machine.torch.get("npu") or {}).get("error") or ""):
        return problem(f"torch_npu {have} cannot be imported", error, (ascend.set_env(machine, cann),))
    listed = ascend.for_torch(torch, have)
    facts = {"torch": torch, "torch_npu": have, "cann": release, "listed": listed}
    if not listed or not release:
        why = "that combination is not in the table" if not listed else "which CANN is in use is not known"
        return cannot_tell(
            f"whether torch {torch}, torch_npu {have} and CANN {release or '?'} belong together", why, **facts
        )
    if release in listed:
        return ok(f"torch {torch}, torch_npu {have} and CANN {release} belong together", **facts)
    other = (f"pip install torch-npu=={meant}",) if meant and meant != have else ()
    return problem(
        f"torch_npu {have} belongs to CANN {' or '.join(listed)}, in use is {release}",
        "operators are missing or compute otherwise",
        (*other, f"# or: install CANN {listed[0]} and {ascend.set_env(machine, cann)}"), **facts,
    )  # fmt: skip
