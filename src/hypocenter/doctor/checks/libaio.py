"""libaio is missing, and DeepSpeed's NVMe offload cannot be built.

What it means
    The operator async_io (`offload_param` or `offload_optimizer` with `device: nvme`) links with libaio and needs its
    header.

How it is decided
    DeepSpeed's own test compiles and links a program with it; where DeepSpeed could not be asked, the library and the
    header are looked for. It is a warning unless DS_BUILD_AIO=1 is set: without NVMe offload nobody needs it.

What to do
    Install the development package.

When it is wrong
    When libaio lies elsewhere: set CFLAGS and LDFLAGS to it.
"""

from __future__ import annotations

from hypocenter.doctor import building
from hypocenter.doctor.answer import Verdict, not_applicable, ok, problem
from hypocenter.doctor.catalogue import check
from hypocenter.doctor.machine import Machine

HEADERS = ("/usr/include/libaio.h", "/usr/local/include/libaio.h")


@check("toolkit.libaio", title="libaio", order=46)
def libaio(machine: Machine) -> Verdict:
    """Whether async_io can be built."""
    is_wanted = machine.environ.get("DS_BUILD_AIO") == "1"
    if not machine.package("deepspeed") and not is_wanted:
        return not_applicable("DeepSpeed is not installed")
    op = building.ops(machine).get("async_io", {})
    if op.get("built"):
        return ok("DeepSpeed's async_io is built")
    if op.get("compatible") or (not op and any(machine.is_file(path) for path in HEADERS)):
        return ok("libaio is there: DeepSpeed's async_io can be built")
    if not is_wanted:
        return ok("not installed, and needed by DeepSpeed's NVMe offload only (async_io)")
    what = "libaio or its header is missing: DeepSpeed's async_io cannot be built"
    return problem(what, "DS_BUILD_AIO=1 is set", ("sudo apt-get install libaio-dev  # dnf: libaio-devel",))
