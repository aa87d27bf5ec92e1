"""What a recording of level `tensors` holds of each optimizer step: parameters, gradients, state, before and after."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from hypocenter.compare.values.tensor_file import Stored, open_tensor_file
from hypocenter.errors import CorruptRecordingError
from hypocenter.record.layout import tensors_directory
from hypocenter.record.reader import RecordedRun

_STEP, _UPDATE = re.compile(r"step-(\d{1,15})"), re.compile(r"update-(\d{1,6})\.safetensors")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterUpdate:
    """One parameter at one update. What is not recorded is None or not there.

    Attributes:
        kind: class of the optimizer; `bases`: with those that it derives from, as `module.Class`.
        options: of its group at this step.
        before, after: of what the optimizer trains: the parameter, or a framework's float32 copy of it.
        gradient: as the rule got it: unscaled (divide by `grad_scale` where that is not 1), clipped.
        state, state_after: by the optimizer's own words; a counter has no dimension.
    """

    step: int
    rank: int
    name: str
    kind: str
    bases: tuple[str, ...]
    options: Mapping[str, Any]
    before: Stored
    after: Stored
    gradient: Stored | None
    grad_scale: float = 1.0
    is_skipped: bool = False
    state: Mapping[str, Stored] = field(default_factory=dict[str, Stored])
    state_after: Mapping[str, Stored] = field(default_factory=dict[str, Stored])


class _Group(msgspec.Struct):
    options: dict[str, Any] = {}
    parameters: list[str] = []


class _About(msgspec.Struct):
    kind: str = ""
    bases: list[str] = []
    groups: list[_Group] = []
    grad_scale: float = 1.0
    is_skipped: bool = False


class RecordedUpdates:
    """Looks the updates of a run up; files are mapped when asked for.

    Attributes:
        problems: files that could not be read, one line each.
    """

    def __init__(self, run: RecordedRun) -> None:
        self.problems: list[str] = []
        self._files: dict[int, list[tuple[int, Path]]] = {}
        for rank in run.ranks:
            for path in sorted(tensors_directory(run.directory, rank).glob("step-*/update-*.safetensors")):
                step = _STEP.fullmatch(path.parent.name)
                if step and _UPDATE.fullmatch(path.name):
                    self._files.setdefault(int(step[1]), []).append((rank, path))

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps of which something is recorded, rising."""
        return tuple(sorted(self._files))

    def of(self, step: int, rank: int | None = None) -> Iterator[ParameterUpdate]:
        """Yield the updates of a step, rank by rank, in the order of the optimizer's groups."""
        for at, path in self._files.get(step, ()):
            if rank is None or at == rank:
                try:
                    yield from _read(path, step, at)
                except (CorruptRecordingError, msgspec.MsgspecError, KeyError) as error:
                    self.problems.append(f"{path}: {error}".splitlines()[0])


def _read(path: Path, step: int, rank: int) -> Iterator[ParameterUpdate]:
    file = open_tensor_file(path)
    about = msgspec.json.decode(file.metadata["update"], type=_About)
    states: dict[str, dict[str, dict[str, Stored]]] = {"state": {}, "after-state": {}}
    for key, tensor in file.tensors.items():
        what, _, rest = key.partition("|")
        if what in states:
            port, _, name = rest.partition("|")
            states[what].setdefault(name, {})[port] = tensor
    for group in about.groups:
        for name in group.parameters:
            before, after = file.tensors.get(f"value|{name}"), file.tensors.get(f"after|{name}")
            if before is None or after is None:
                continue
            yield ParameterUpdate(
                step=step,
                rank=rank,
                name=name,
                kind=about.kind,
                bases=tuple(about.bases),
                options=group.options,
                before=before,
                after=after,
                gradient=file.tensors.get(f"grad|{name}"),
                grad_scale=about.grad_scale,
                is_skipped=about.is_skipped,
                state=states["state"].get(name, {}),
                state_after=states["after-state"].get(name, {}),
            )
