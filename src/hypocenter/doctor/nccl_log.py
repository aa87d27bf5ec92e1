"""What NCCL prints with NCCL_DEBUG set, read and explained: versions, interfaces, transports, warnings.

Lines are `HOST:PID:THREAD [DEVICE] NCCL INFO TEXT`, of warnings `HOST:PID:THREAD [DEVICE] FILE:LINE NCCL WARN TEXT`;
newer releases put a time before them, launchers a rank. Explanations are in `nccl_messages.toml`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, cast

from hypocenter.doctor.answer import Check, CheckStatus
from hypocenter.errors import HypocenterError
from hypocenter.toml import tomllib

TABLE = Path(__file__).with_name("nccl_messages.toml")
_LINE = re.compile(
    r"(?P<host>[\w.-]+):(?P<pid>\d+):(?P<thread>\d+) \[(?P<device>-?\d+)\]"
    r"(?: (?P<where>\S+:\d+))? NCCL (?P<level>INFO|WARN|TRACE|VERSION|ABORT) (?P<text>.*)"
)
_VERSION = re.compile(r"NCCL version ([\d.]+)")
_BOOTSTRAP = re.compile(r"Bootstrap ?: Using (\S+?):")
_NETWORK = re.compile(r"Using network (.+?)\s*$")
_RANK = re.compile(r"\brank (\d+) n[rR]anks (\d+)")
_VIA = re.compile(r"(\d+)\[\w+\] -> (\d+)\[\w+\](?: \[(send|receive)\])? via (\S+)(.*)")
_OLD_VIA = re.compile(r"Ring \d+ : (\d+)(?:\[\w+\])? -> (\d+)(?:\[\w+\])? via (\S+)(.*)")
_SET = re.compile(r"(NCCL_\w+) set by environment to (.+?)\.?\s*$")
_SHOWN = 8  # warnings quoted


class NoNcclLogError(HypocenterError):
    """A file that holds nothing that NCCL prints, or cannot be read."""

    slug = "no-nccl-log"
    exit_code = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """One warning of NCCL, and how often it came."""

    text: str
    where: str  # file and line of NCCL's source
    host: str
    device: int
    count: int = 1


@dataclass(slots=True)
class NcclLog:
    """What a log of NCCL says."""

    versions: dict[str, set[str]] = field(default_factory=dict)  # version -> hosts
    interfaces: dict[str, set[str]] = field(default_factory=dict)  # host -> those that its processes set out from
    networks: dict[str, set[str]] = field(default_factory=dict)  # "IB", "Socket", "AWS Libfabric" -> processes
    transports: Counter[str] = field(default_factory=Counter)  # "P2P/CUMEM", "SHM/direct", "NET/IB ..." -> channels
    n_ranks: int = 0
    hosts: dict[str, None] = field(default_factory=dict)  # in the order in which they come
    settings: dict[str, str] = field(default_factory=dict)  # NCCL_* that it found in the environment
    no_ib: bool = False
    warnings: dict[tuple[str, str], Warned] = field(default_factory=dict)  # by host and text


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """A message of NCCL that our table explains."""

    name: str
    pattern: re.Pattern[str]
    status: CheckStatus
    what: str
    why: str
    fix: tuple[str, ...] = ()
    is_consequence: bool = False  # of something else that went wrong first


def read(path: Path) -> NcclLog:
    """Read a log file.

    Raises:
        NoNcclLogError: it cannot be read, or no line of it is NCCL's.
    """
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            log = parsed(lines)
    except OSError as error:
        raise NoNcclLogError("the log cannot be read", where=str(path), why=error.strerror or str(error)) from error
    if not log.hosts and not log.versions:
        raise NoNcclLogError(
            "no line in it is NCCL's", where=str(path), why="its lines say `NCCL INFO` or `NCCL WARN`",
            fix="export NCCL_DEBUG=INFO and run the program again, its output into the file",
        )  # fmt: skip
    return log


def parsed(lines: Iterable[str]) -> NcclLog:
    """Gather what NCCL's lines say; lines of others are passed over."""
    log = NcclLog()
    for line in lines:
        match = _LINE.search(line)
        if match:
            _take(log, match)
        elif version := _VERSION.search(line):
            log.versions.setdefault(version[1], set())
    return log


def checks_of(log: NcclLog) -> list[Check]:
    """Return what the log means: versions, the way the data goes, and each warning explained."""
    return [*_versions(log), *_ways(log), *_warnings(log)]


@cache
def known(table: Path = TABLE) -> tuple[Explained, ...]:
    """Read the table of messages, in its order: the first that fits counts."""
    with table.open("rb") as file:
        entries = cast("dict[str, dict[str, Any]]", tomllib.load(file))
    return tuple(
        Explained(
            name=name, pattern=re.compile(entry["pattern"], re.IGNORECASE), status=entry.get("status", "problem"),
            what=entry["what"], why=entry["why"], fix=tuple(entry.get("fix", ())),
            is_consequence=entry.get("consequence", False),
        )
        for name, entry in entries.items()
    )  # fmt: skip


def explained(text: str) -> Explained | None:
    """Return the table's entry for a warning; None when it has none."""
    return next((entry for entry in known() if entry.pattern.search(text)), None)


def _take(log: NcclLog, match: re.Match[str]) -> None:
    host, process, text = match["host"], f"{match['host']}:{match['pid']}", match["text"].strip()
    log.hosts.setdefault(host)
    if match["level"] == "WARN":
        before = log.warnings.get((host, text))
        n_before = before.count if before else 0
        log.warnings[host, text] = Warned(
            text=text, where=match["where"] or "", host=host, device=int(match["device"]), count=n_before + 1
        )
        return
    if found := _VERSION.search(text):
        log.versions.setdefault(found[1], set()).add(host)
    if found := _BOOTSTRAP.search(text):
        log.interfaces.setdefault(host, set()).add(found[1])
    if found := _NETWORK.search(text):
        log.networks.setdefault(found[1], set()).add(process)
    if found := _RANK.search(text):
        log.n_ranks = max(log.n_ranks, int(found[2]))
    if found := _SET.search(text):
        log.settings[found[1]] = found[2]
    log.no_ib = log.no_ib or "NET/IB : No device found" in text
    if found := _VIA.search(text):
        if found[3] != "receive":  # each channel over the network is told of at both ends
            log.transports[_way(found[4], found[5])] += 1
    elif found := _OLD_VIA.search(text):
        log.transports[_way(found[3], found[4])] += 1


def _way(via: str, rest: str) -> str:
    parts = via.split("/")
    if parts[0] == "NET":
        gdr = " with GPU Direct RDMA" if "GDRDMA" in via + rest else ""
        return f"NET/{parts[1] if len(parts) > 1 else '?'}{gdr}"
    return "/".join(parts[:2]) if parts[0] in ("P2P", "SHM") else parts[0]


def _versions(log: NcclLog) -> list[Check]:
    """The ranks run different versions of NCCL.

    What it means
        They hang or fail when they set up a group.

    How it is decided
        Each process prints its version with NCCL_DEBUG=INFO.

    What to do
        Use one environment on all hosts; LD_LIBRARY_PATH and LD_PRELOAD may choose another library than torch's.

    When it is wrong
        When the log is of two jobs.
    """
    if len(log.versions) < 2:
        return []
    text = "; ".join(f"{version} on {', '.join(sorted(hosts)) or 'a host'}" for version, hosts in log.versions.items())
    return [
        Check(
            code="comm.nccl-version", area="communication", title="version of NCCL", status="problem",
            what=f"the ranks run NCCL {text}", why="ranks with different versions hang or fail as they set up a group",
            fix=('python -c "import torch; print(torch.__version__, torch.cuda.nccl.version())"  # on each host',),
            evidence={"versions": {version: sorted(hosts) for version, hosts in log.versions.items()}},
        )
    ]  # fmt: skip


def _ways(log: NcclLog) -> list[Check]:
    """The way that NCCL's data goes.

    What it means
        Within a host by P2P (NVLink or PCIe), else through shared memory; between hosts by InfiniBand or RoCE, else
        by TCP. A slower way than the hardware has is the most common reason of slow training.

    How it is decided
        From the lines `Channel ... via ...`, `Using network ...` and `Bootstrap : Using ...`, and the NCCL_
        variables that it found.

    What to do
        Unset what switches the fast way off, or choose the interface that all hosts share.

    When it is wrong
        When the hosts have no faster network.
    """
    facts = [
        f"{count} channel{'s' if count > 1 else ''} by {way}"
        for way, count in sorted(log.transports.items(), key=lambda e: -e[1])
    ]
    facts += [f"network {', '.join(log.networks)}"] if log.networks else []
    interfaces = sorted({name for names in log.interfaces.values() for name in names})
    facts += [f"set up over {', '.join(interfaces)}"] if interfaces else []
    if not facts:
        return []
    text = f"NCCL {', '.join(log.versions) or '(version not told)'}: {'; '.join(facts)}"
    evidence: dict[str, Any] = {
        "transports": dict(log.transports), "settings": log.settings,
        "networks": {name: len(processes) for name, processes in log.networks.items()},
        "interfaces": {host: sorted(names) for host, names in log.interfaces.items()}, "hosts": list(log.hosts),
    }  # fmt: skip
    status, why, fix = _judged_ways(log, interfaces)
    return [
        Check(
            code="comm.nccl-transport", area="communication", title="transports of NCCL", status=status,
            what=text, why=why, fix=fix, evidence=evidence,
        )
    ]  # fmt: skip


def _judged_ways(log: NcclLog, interfaces: Sequence[str]) -> tuple[CheckStatus, str, tuple[str, ...]]:
    many_hosts = len(log.hosts) > 1
    if many_hosts and "lo" in interfaces:
        return "problem", "the loopback interface leads to no other host: the set-up hangs or is refused", (
            "export NCCL_SOCKET_IFNAME=^lo,docker  # or the interface that all hosts share",
        )  # fmt: skip
    if many_hosts and any(name.startswith(("docker", "virbr", "br-")) for name in interfaces):
        return "warning", "a bridge inside the host seldom leads to other hosts", (
            "export NCCL_SOCKET_IFNAME=^lo,docker,virbr  # or the interface that all hosts share",
        )  # fmt: skip
    if many_hosts and log.settings.get("NCCL_IB_DISABLE") == "1" and "Socket" in log.networks:
        return "warning", "InfiniBand is switched off by NCCL_IB_DISABLE=1: data goes over TCP, many times slower", (
            "unset NCCL_IB_DISABLE",
        )  # fmt: skip
    if many_hosts and log.no_ib and "Socket" in log.networks:
        return "warning", "no InfiniBand or RoCE device was found: data goes over TCP, many times slower", (
            "ibv_devinfo", "ls /dev/infiniband  # in a container: --device /dev/infiniband --ulimit memlock=-1",
        )  # fmt: skip
    if log.settings.get("NCCL_P2P_DISABLE") == "1" or log.settings.get("NCCL_SHM_DISABLE") == "1":
        name = "NCCL_P2P_DISABLE" if log.settings.get("NCCL_P2P_DISABLE") == "1" else "NCCL_SHM_DISABLE"
        return "warning", f"{name}=1 keeps cards of one host from their fastest way", (f"unset {name}",)
    return "ok", "", ()


def _warnings(log: NcclLog) -> list[Check]:
    """NCCL warned of something that is not in our table.

    What it means
        See the text itself.

    How it is decided
        Every line with `NCCL WARN` is looked up in `nccl_messages.toml`; messages that only follow when another
        rank has failed are left out beside others.

    What to do
        Search NCCL's issues for the text.

    When it is wrong
        Some warnings are harmless.
    """
    told: dict[str, tuple[Explained | None, list[Warned]]] = {}
    for warned in log.warnings.values():
        entry = explained(warned.text)
        told.setdefault(entry.name if entry else warned.text, (entry, []))[1].append(warned)
    only_causes = [each for each in told.values() if each[0] is None or not each[0].is_consequence]
    shown = only_causes or list(told.values())  # what follows from another message is left out beside it
    return [_check(entry, warned) for entry, warned in shown[:_SHOWN]]


def _check(entry: Explained | None, warned: Sequence[Warned]) -> Check:
    first = warned[0]
    hosts = sorted({each.host for each in warned})
    count = sum(each.count for each in warned)
    quoted = f"“{first.text[:160]}”" + (f", {count} times" if count > 1 else "")
    evidence: dict[str, Any] = {"text": first.text, "where": first.where, "count": count, "hosts": hosts}
    on = f" on {', '.join(hosts[:6])}" if len(hosts) > 1 else ""
    if entry is None:
        return Check(
            code="comm.nccl-warning", area="communication", title="warnings of NCCL", status="warning",
            what=f"NCCL warned{on}: {quoted}", why="this message is not in our table", host=hosts[0], evidence=evidence,
        )  # fmt: skip
    return Check(
        code=f"comm.nccl-{entry.name}", area="communication", title="warnings of NCCL", status=entry.status,
        what=f"{entry.what}{on}: {quoted}", why=entry.why, fix=entry.fix, host=hosts[0] if len(hosts) == 1 else "",
        evidence=evidence,
    )  # fmt: skip
