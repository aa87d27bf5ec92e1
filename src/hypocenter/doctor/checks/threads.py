"""More threads than cores: slow, and sums on the CPU in another order than elsewhere.

What it means
    Each rank starts OMP_NUM_THREADS threads. With more threads than cores they wait for each other; with another number
    than on the other side of a comparison, sums on the CPU are cut into other pieces.

How it is decided
    OMP_NUM_THREADS times the ranks of this node (LOCAL_WORLD_SIZE, 1 without a launcher) against the cores that this
    process may use. More than twice the cores is a warning, and so is a value that is no number.

What to do
    Set it to cores divided by ranks of a node.

When it is wrong
    When the ranks are bound to other cores than this process.
"""

from __future__ import annotations

import re

from hypocenter.doctor.answer import Verdict, not_applicable, ok, warning
from hypocenter.doctor.catalogue import check
from hypocenter.doctor.machine import Machine

_LEVELS = re.compile(r"\s*\+?0*[1-9][0-9]*\s*(,\s*\+?0*[1-9][0-9]*\s*)*")  # OpenMP 5.2, 21.1.2: positive integers
TOO_MANY = 2.0  # threads a core from which on waiting costs more than hyper-threads give


@check("setting.threads", title="threads", area="settings", order=84)
def threads(machine: Machine) -> Verdict:
    """Whether the threads of all ranks of this node fit on its cores."""
    text = machine.environ.get("OMP_NUM_THREADS", "")
    if not text or not machine.n_cores:
        return not_applicable("OMP_NUM_THREADS is not set")
    if not _LEVELS.fullmatch(text):
        return warning(
            f"OMP_NUM_THREADS={text} is no number", "it is ignored: every rank starts a thread for each core",
            ("unset OMP_NUM_THREADS",),
        )  # fmt: skip
    text = text.partition(",")[0].strip()  # the levels below are of nested parallel regions
    local = machine.environ.get("LOCAL_WORLD_SIZE", "1")
    n_ranks = int(local) if local.isdecimal() else 1
    n_threads = int(text) * n_ranks
    told = (
        f"{n_ranks} ranks with {text} thread{'s' * (text != '1')} each"
        if n_ranks > 1
        else f"{n_threads} thread{'s' * (n_threads != 1)}"
    )
    what = f"{told} on {machine.n_cores} cores"
    if n_threads <= TOO_MANY * machine.n_cores:
        return ok(what)
    fix = (f"export OMP_NUM_THREADS={max(1, machine.n_cores // n_ranks)}",)
    return warning(what, "they wait for each other, and sums on the CPU are cut into other pieces", fix)
