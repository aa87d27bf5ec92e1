"""What `hypocenter fleet` answers: which devices were accused, over all recordings of a folder."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta

from hypocenter.diagnose.run_list import diagnosed_in, recordings_below
from hypocenter.errors import HypocenterError
from hypocenter.nouns import Place
from hypocenter.record.layout import rank_directories
from hypocenter.record.place_file import read_place
from hypocenter.record.whole_run import read_run_file

FAULT = "hardware-fault"
NAMING = frozenset({FAULT, "collective-fault", "rank-lost"})
"""Causes that may lie in a device; of the others than FAULT also a cable, a limit, or the program of another rank."""
_Key: TypeAlias = tuple[str, ...]  # serial number where it is known, else host and device


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A finding that names the rank of a device."""

    run: Annotated[str, Meta(description="Path of the recording.")]
    started: Annotated[str, Meta(description="Of the run: ISO 8601, UTC; empty if it is not known.")] = ""
    code: str
    cause: str
    confidence: str
    title: str
    step: int
    rank: int
    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device that was accused, or that was named in two recordings."""

    serial: Annotated[str, Meta(description="UUID or serial number; empty if the recordings do not tell it.")] = ""
    hosts: Annotated[tuple[str, ...], Meta(description="That it was in, the latest first.")]
    device: Annotated[str, Meta(description="Where it was last: npu:3.")] = ""
    device_name: str = ""
    n_runs: Annotated[int, Meta(description="Recordings that it took part in.")]
    n_accused: Annotated[int, Meta(description="Recordings that found a fault of its hardware.")]
    n_named: Annotated[int, Meta(description="Recordings that found this, that its rank was lost, or its sums wrong.")]
    named: Annotated[tuple[Named, ...], Meta(description="By which findings, of the latest run first.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The devices that were accused, or named in two recordings; those with the most first."""

    schema: Literal["hypocenter.fleet/1"] = "hypocenter.fleet/1"
    status: Annotated[
        Literal["again", "once", "none"], Meta(description="again: one was accused by two recordings or more.")
    ]
    folder: str
    n_runs: Annotated[int, Meta(description="Recordings that were looked at.")]
    n_devices: Annotated[int, Meta(description="Devices that took part in them.")]
    devices: tuple[Device, ...] = ()
    not_checked: Annotated[tuple[str, ...], Meta(description="Recordings that have no diagnosis yet.")] = ()
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _History:
    """A device as it was in the recordings, the latest first."""

    places: list[Place] = field(default_factory=list)
    runs: set[Path] = field(default_factory=set)
    named: list[Named] = field(default_factory=list)

    @property
    def device(self) -> Device:
        latest = self.places[0]
        return Device(
            serial=latest.serial, device=latest.device, device_name=latest.device_name,
            hosts=tuple(dict.fromkeys(place.host for place in self.places)), n_runs=len(self.runs),
            n_accused=len({each.run for each in self.named if each.cause == FAULT}),
            n_named=len({each.run for each in self.named}), named=tuple(self.named),
        )  # fmt: skip


def answer(folder: Path) -> Fleet:
    """Return what all recordings of a folder and its folders say, as the last `hypocenter check` of each saw them.

    Raises:
        NoRecordingError: there is no such folder, or none in it.
    """
    paths, notes = recordings_below(folder)
    histories: dict[_Key, _History] = defaultdict(_History)
    not_checked: list[str] = []
    unsure: list[str] = []
    for started, path in sorted(((_started(path), path) for path in paths), reverse=True):
        places = {rank: place for rank, at in rank_directories(path).items() if (place := read_place(at)) is not None}
        for place in places.values():
            history = histories[_key(place)]
            history.places.append(place)
            history.runs.add(path)
        diagnosed = diagnosed_in(path)
        if diagnosed is None:
            not_checked.append(str(path))
            continue
        for finding in filter(_names_a_device, diagnosed.findings):
            rank, step = finding["rank"], finding["step"]
            place = places.get(rank)
            if place is None or len({attempt.host for attempt in place.attempts}) > 1:
                unsure.append(f"{path}: which device rank {rank} had at step {step} is not known")
                continue
            words = {key: str(finding.get(key, "")) for key in ("code", "cause", "confidence", "title")}
            histories[_key(place)].named.append(
                Named(run=str(path), started=started, step=step, rank=rank, host=place.host, **words)
            )
    known = [history.device for history in histories.values() if history.named]
    devices = [device for device in known if device.n_accused or device.n_named > 1]
    devices.sort(key=lambda device: (-device.n_accused, -device.n_named, device.hosts, device.device))
    most = max((device.n_accused for device in devices), default=0)
    return Fleet(
        status="again" if most > 1 else "once" if most else "none", folder=str(folder), n_runs=len(paths),
        n_devices=len(histories), devices=tuple(devices), not_checked=tuple(not_checked), notes=(*notes, *unsure),
    )  # fmt: skip


def _started(path: Path) -> str:
    try:
        return read_run_file(path)[0].started
    except HypocenterError:  # of a newer Hypocenter
        return ""


def _key(place: Place) -> _Key:
    return (place.serial,) if place.serial else (place.host, place.device or str(place.local_rank))


def _names_a_device(finding: dict[str, Any]) -> bool:
    """Return whether a finding names a device, as a diagnosis.json of whatever version says it."""
    has_place = isinstance(finding.get("rank"), int) and isinstance(finding.get("step"), int)
    return has_place and finding.get("cause") in NAMING and finding.get("severity") != "note"
