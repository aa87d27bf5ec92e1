"""One rank, one device; memory can be had on each; all ranks run the same versions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from hypocenter.doctor.answer import Check
from hypocenter.doctor.over_ranks.reports import Reports, joined

CODE, TITLE = "comm.devices", "one device for each rank"


def judge(reports: Reports) -> list[Check]:
    """Devices, then versions."""
    return [*_devices(reports), *_versions(reports)]


def _devices(reports: Reports) -> list[Check]:
    found: list[Check] = []
    holders: dict[str, list[int]] = {}
    for rank, known in reports.facts.items():
        if known["device"]["serial"]:
            holders.setdefault(known["device"]["serial"], []).append(rank)
    shared = {serial: ranks for serial, ranks in holders.items() if len(ranks) > 1}
    for ranks in shared.values():
        found.append(
            Check(
                code=CODE, area="communication", title=TITLE, status="problem", host=reports.host(ranks[0]),
                what=f"{reports.named(ranks)} share one device: {reports.facts[ranks[0]]['device']['name']}",
                why="NCCL refuses two ranks on one device, and their memory and time are shared; "
                "each process has to take the device of its LOCAL_RANK",
                fix=("torchrun --nproc-per-node gpu …", "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))  # in the program"),
                evidence={"ranks": ranks},
            )
        )  # fmt: skip
    for rank, known in reports.facts.items():
        if known["memory"]:
            found.append(
                Check(
                    code="comm.memory", area="communication", title="memory on each device", status="problem",
                    rank=rank, host=reports.host(rank),
                    what=f"{reports.named([rank])} gets no memory on its device: {known['memory']['error']}",
                    why="another process holds it, or the device is broken",
                    fix=("nvidia-smi --query-compute-apps=pid,used_memory --format=csv",),
                )
            )  # fmt: skip
    if found:
        return found
    names = Counter(known["device"]["name"] for known in reports.facts.values())
    kinds = {known["device"]["kind"] for known in reports.facts.values()}
    if kinds == {"cpu"}:
        n = len(reports.facts)
        return [
            Check(
                code=CODE, area="communication", title=TITLE, status="not-applicable",
                what=f"no accelerator: {n} ranks compute on the CPU ({joined(list(names)[:3])})",
            )
        ]  # fmt: skip
    text = joined([f"{count} × {name}" for name, count in names.items()])
    if len(names) > 1:
        return [
            Check(
                code=CODE, area="communication", title=TITLE, status="warning", what=f"devices of several kinds: {text}",
                why="the slowest sets the pace, and their kernels round differently", evidence={"names": dict(names)},
            )
        ]  # fmt: skip
    return [
        Check(
            code=CODE, area="communication", title=TITLE, status="ok", what=f"{text}, one for each rank, memory given",
            evidence={"names": dict(names)},
        )
    ]  # fmt: skip


def _versions(reports: Reports) -> list[Check]:
    by_name: dict[str, dict[str, list[int]]] = {}
    for rank, known in reports.facts.items():
        versions: Mapping[str, Any] = known["versions"]
        for name, version in versions.items():
            by_name.setdefault(name, {}).setdefault(version, []).append(rank)
    differing = {name: of for name, of in by_name.items() if len(of) > 1}
    if not differing:
        text = ", ".join(f"{name} {next(iter(of))}" for name, of in by_name.items())
        return [
            Check(
                code="comm.versions", area="communication", title="the same versions on all ranks", status="ok",
                what=text or "unknown",
            )
        ]  # fmt: skip
    name, of = next(iter(differing.items()))
    text = "; ".join(f"{name} {version} on {reports.named(ranks)}" for version, ranks in of.items())
    is_fatal = "nccl" in differing or "torch" in differing
    return [
        Check(
            code="comm.versions", area="communication", title="the same versions on all ranks",
            status="problem" if is_fatal else "warning", what=text,
            why="NCCL of another version does not answer, or answers in another protocol" if is_fatal else "not tested together",
            evidence={name: {v: ranks for v, ranks in of.items()} for name, of in differing.items()},
        )
    ]  # fmt: skip
