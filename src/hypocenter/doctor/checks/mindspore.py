"""MindSpore, MindFormers and CANN do not belong together.

What it means
    Each release of MindSpore Transformers (MindFormers) is made for one of MindSpore, and that for one of CANN. Other
    combinations may run and compute other numbers: the first thing to check in a precision problem on Ascend.

How it is decided
    By the tables of MindSpore Transformers' installation guide. A version that is not listed is answered with "cannot
    tell"; nothing is guessed from its number. A driver that is older than the table's is a warning.

What to do
    Install the versions of one row.

When it is wrong
    When a development version is in use on purpose.
"""

from __future__ import annotations

from hypocenter.doctor import ascend, hardware
from hypocenter.doctor.answer import Verdict, cannot_tell, not_applicable, ok, problem, warning
from hypocenter.doctor.catalogue import check
from hypocenter.doctor.machine import Machine, version_numbers, version_table


@check("toolkit.mindspore", title="MindSpore", order=64)
def mindspore(machine: Machine) -> Verdict:
    """Whether MindSpore, MindFormers and CANN are of one row."""
    version = ascend.mindspore_version(machine.package("mindspore") or machine.package("mindspore-ascend"))
    formers = machine.package("mindformers")
    if not version:
        return not_applicable("MindSpore is not installed")
    chosen = ascend.active(machine) if hardware.uses_ascend(machine) else None
    cann = chosen.version if chosen is not None else ""
    facts = {"mindspore": version, "mindformers": formers, "cann": cann}
    row = version_table("ascend")["mindformers"].get(formers)
    if row is not None and row["mindspore"] != version:
        return problem(
            f"MindFormers {formers} belongs to MindSpore {row['mindspore']}, installed is {version}",
            "versions that were not made together compute other numbers",
            (f"pip install mindspore=={row['mindspore']}",),
            **facts,
        )
    if not hardware.uses_ascend(machine):
        return ok(f"MindSpore {version}; no NPU here, so no CANN to go with it")
    known = version_table("ascend")["mindspore"].get(version)
    if known is None or not cann or (formers and row is None):
        unlisted = f"MindSpore {version}" if known is None else f"MindFormers {formers}"
        why = f"{unlisted} is not in the table" if known is None or cann else "no CANN was found"
        also = f", MindFormers {formers}" if formers else ""
        return cannot_tell(f"whether MindSpore {version}{also} and CANN {cann or '?'} belong together", why, **facts)
    if cann not in known:
        return problem(
            f"MindSpore {version} belongs to CANN {' or '.join(known)}, in use is {cann}",
            "operators are missing or compute otherwise",
            (f"# install CANN {known[0]}, then:", ascend.set_env(machine, chosen)),
            **facts,
        )
    also = f", MindFormers {formers}" if formers else ""
    driver = ascend.driver(machine)
    if row is not None and driver and version_numbers(driver) < version_numbers(str(row["driver"])):
        return warning(
            f"MindFormers {formers} was made with driver {row['driver']}, loaded is {driver}",
            "an older driver may lack what CANN asks for",
            (f"# install the driver and firmware {row['driver']} or newer, then: npu-smi info",),
            driver=driver, **facts,
        )  # fmt: skip
    return ok(f"MindSpore {version}{also} and CANN {cann} belong together", **facts)
