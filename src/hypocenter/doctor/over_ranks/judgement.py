"""All judges, one after the other: problems are theirs, the order is ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hypocenter.catalogue import Catalogue, having
from hypocenter.doctor.answer import Check
from hypocenter.doctor.over_ranks.reports import Reports, check, of_message

if TYPE_CHECKING:
    from hypocenter.doctor.communication import Examined

JUDGES: Catalogue[ModuleType] = Catalogue("hypocenter.doctor.over_ranks", entry=having("judge"))
_WORST_FIRST = ("problem", "warning", "cannot-tell", "ok", "not-applicable")


def judged(message: Mapping[str, Any], expected_hosts: Mapping[int, str]) -> Examined:
    """Return what the reports of all ranks say, problems first."""
    from hypocenter.doctor.communication import Examined

    reports = of_message(message, expected_hosts)
    checks = [check for each in JUDGES.in_order() for check in _safely(each.judge, reports)]
    checks.sort(key=lambda check: _WORST_FIRST.index(check.status))
    return Examined(tuple(checks), reports.missing, reports.n_ranks)


def _safely(judge: Callable[[Reports], list[Check]], reports: Reports) -> list[Check]:
    """What the ranks reported could not be judged.

    What it means
        A bug in Hypocenter, or a report that a broken rank garbled. The other checks are not touched by it.

    How it is decided
        The function that judges has raised an error.

    What to do
        Please report it, with the answer of `--json`.

    When it is wrong
        Never: it only says that nothing is known.
    """
    try:
        return judge(reports)
    except Exception as error:
        name = judge.__module__.rpartition(".")[2]
        return [
            check(
                "comm.not-judged",
                name,
                "cannot-tell",
                f"what the ranks reported about {name} could not be judged",
                f"{type(error).__name__}: {error}: a bug in Hypocenter",
            )
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The commands for one make of devices."""

    library: str
    look: str  # at the devices of a host
    pace: str  # why one is slow
    errors: str  # of memory and links
    log: str  # makes the library say what it does


BY_BACKEND = {
    "nccl": Tools(
        library="NCCL",
        look="nvidia-smi",
        pace="nvidia-smi -q -d PERFORMANCE,TEMPERATURE,CLOCK",
        errors="nvidia-smi -q -d ECC,PAGE_RETIREMENT; dmesg | grep -i xid",
        log="export NCCL_DEBUG=INFO",
    ),
    "hccl": Tools(  # Ascend: npu-smi command reference; CANN: log reference
        library="HCCL",
        look="npu-smi info",
        pace="npu-smi info -t common -i 0",
        errors="npu-smi info -t ecc -i 0; npu-smi info -t health -i 0",
        log="export ASCEND_GLOBAL_LOG_LEVEL=1 ASCEND_SLOG_PRINT_TO_STDOUT=1",
    ),
}
