"""ninja is missing, and extensions are compiled without it: slowly, or not at all.

What it means
    torch compiles extensions in parallel with ninja. DeepSpeed's operators that are built when first used need it:
    `RuntimeError: Ninja is required to load C++ extensions`.

How it is decided
    `ninja --version` is run. It is a problem where extensions are built here, else not mentioned.

What to do
    Install it; its folder (of the virtual environment) must be on PATH of the training process.

When it is wrong
    When only wheels are installed: give --no-build.
"""

from __future__ import annotations

from hypocenter.doctor import building
from hypocenter.doctor.answer import Verdict, not_applicable, ok, problem
from hypocenter.doctor.catalogue import check
from hypocenter.doctor.machine import Machine


@check("toolkit.ninja", title="ninja", order=44)
def ninja(machine: Machine) -> Verdict:
    """Whether ninja runs."""
    reply = machine.ask(("ninja", "--version"))
    if reply is not None and reply.is_good:
        return ok(f"ninja {reply.text.strip().splitlines()[0] if reply.text.strip() else 'runs'}")
    if not (builds := building.reason(machine)):
        return not_applicable("no ninja, and no extensions are built here")
    if version := machine.package("ninja"):
        return problem(
            f"ninja {version} is installed, but its program is not on PATH or does not run",
            f"extensions are built here ({builds}): Ninja is required to load C++ extensions",
            ('export PATH="$(python -c \'import sysconfig; print(sysconfig.get_path("scripts"))\')":$PATH',),
        )
    return problem(
        "ninja is not installed", f"extensions are built here ({builds}): Ninja is required to load C++ extensions",
        ("pip install ninja",),
    )  # fmt: skip
