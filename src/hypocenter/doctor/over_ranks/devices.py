"""One rank, one device; memory can be had on each; all ranks run the same versions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from hypocenter.doctor.answer import Check
from hypocenter.doctor.over_ranks.reports import Reports, check, joined

CODE, TITLE = "comm.devices", "devices"

order = 3  # in which judges are asked


def judge(reports: Reports) -> list[Check]:
    """Judge the devices, then the versions."""
    return [*_devices(reports), *_versions(reports)]


def _devices(reports: Reports) -> list[Check]:
    """Two ranks share one device, or the devices of the ranks are of different kinds.

    What it means
        Each process has to take a device of its own. NCCL refuses two ranks on one device; without it they share
        its memory and its time.

    How it is decided
        By the device's UUID, else by host and bus address. The device of a rank is that of its LOCAL_RANK, as under
        torchrun.

    What to do
        Start one process per device, and have each choose the device of its LOCAL_RANK.

    When it is wrong
        When the program chooses its devices otherwise than by LOCAL_RANK, on purpose.
    """
    holders: dict[str, list[int]] = {}
    for rank, known in reports.facts.items():
        if known["device"]["serial"]:
            holders.setdefault(known["device"]["serial"], []).append(rank)
    shared = {serial: ranks for serial, ranks in holders.items() if len(ranks) > 1}
    kind = next((known["device"].get("kind", "cuda") for known in reports.facts.values()), "cuda")
    found = [
        check(
            CODE,
            TITLE,
            "problem",
            f"{reports.named(ranks)} share one device: {reports.facts[ranks[0]]['device']['name']}",
            "NCCL and HCCL refuse two ranks on one device, and their memory and time are shared; "
            "each process has to take the device of its LOCAL_RANK",
            (
                "# torchrun --nproc-per-node gpu …",
                f"# in the program: torch.{kind}.set_device(int(os.environ['LOCAL_RANK']))",
            ),
            host=reports.host(ranks[0]),
            evidence={"ranks": ranks},
        )
        for ranks in shared.values()
    ]
    found += _without_memory(reports)
    if found:
        return found
    names = Counter(known["device"]["name"] for known in reports.facts.values())
    kinds = {known["device"]["kind"] for known in reports.facts.values()}
    if kinds == {"cpu"}:
        n = len(reports.facts)
        return [
            check(
                CODE,
                TITLE,
                "not-applicable",
                f"no accelerator: {n} ranks compute on the CPU ({joined(list(names)[:3])})",
            )
        ]
    text = joined([f"{count} × {name}" for name, count in names.items()])
    if len(names) > 1:
        return [
            check(
                CODE,
                TITLE,
                "warning",
                f"devices of several kinds: {text}",
                "the slowest sets the pace, and their kernels round differently",
                evidence={"names": dict(names)},
            )
        ]
    return [check(CODE, TITLE, "ok", f"{text}, one for each rank, memory given", evidence={"names": dict(names)})]


def _without_memory(reports: Reports) -> list[Check]:
    """A rank gets no memory on its device.

    What it means
        Another process holds all of it, the device is in a mode that lets only one process in, or it is broken.

    How it is decided
        Each rank allocates 4 KiB on its device, writes numbers and reads them back.

    What to do
        See which processes hold the memory, and end those that are left over.

    When it is wrong
        When another job shares the device on purpose.
    """
    found: list[Check] = []
    for rank, known in reports.facts.items():
        if known["memory"]:
            found.append(
                check(
                    "comm.memory",
                    "device memory",
                    "problem",
                    f"{reports.named([rank])} gets no memory on its device: {known['memory']['error']}",
                    "another process holds it, or the device is broken",
                    ("nvidia-smi --query-compute-apps=pid,used_memory --format=csv",),
                    rank=rank,
                    host=reports.host(rank),
                )
            )
    return found


def _versions(reports: Reports) -> list[Check]:
    """The ranks run different versions of Python, torch, CUDA or NCCL.

    What it means
        NCCL of another version does not answer, or hangs; another torch has other kernels, which round otherwise.

    How it is decided
        Every rank says its versions when it comes.

    What to do
        Use one environment on all hosts, best one container image.

    When it is wrong
        When another build of the same release gives itself another name.
    """
    by_name: dict[str, dict[str, list[int]]] = {}
    for rank, known in reports.facts.items():
        versions: Mapping[str, Any] = known["versions"]
        for name, version in versions.items():
            by_name.setdefault(name, {}).setdefault(version, []).append(rank)
    told = {name.lower() for report in reports.of.values() for name in report.get("settings", {}).get("versions", {})}
    differing = {name: of for name, of in by_name.items() if len(of) > 1 and name not in told}
    if not differing:
        text = ", ".join(f"{name} {next(iter(of))}" for name, of in by_name.items())
        return [check("comm.versions", "versions", "ok", text or "unknown")]
    name, of = next(iter(differing.items()))
    text = "; ".join(f"{name} {version} on {reports.named(ranks)}" for version, ranks in of.items())
    is_fatal = bool({"nccl", "cann", "torch"} & set(differing))
    return [
        check(
            "comm.versions",
            "versions",
            "problem" if is_fatal else "warning",
            text,
            "NCCL or HCCL of another version does not answer" if is_fatal else "not tested together",
            evidence={name: dict(of) for name, of in differing.items()},
        )
    ]
