"""The values that a run of level `tensors` holds, by spot, step and micro-batch."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

from hypocenter.compare.comparison import Spot
from hypocenter.compare.values.tensor_file import Stored, TensorFile, open_tensor_file
from hypocenter.errors import CorruptRecordingError
from hypocenter.record.layout import rank_directory, tensors_directory
from hypocenter.record.reader import RecordedRun

_STEP, _MICROBATCH = re.compile(r"step-(\d{1,15})"), re.compile(r"mb-(\d{1,15})")
_OPEN = 64  # files mapped at a time
_OF_PARAMETERS = {("param", "value"): "", ("grad", "grad"): ".grad"}


class RecordedValues:
    """Looks values up; a file is mapped when first asked for.

    Args:
        run: the recording. Of several ranks each has its own part of a tensor: such a run answers with nothing, unless
            a rank is named.
        rank: whose values.
        is_wanted: off: none are looked up.
    """

    def __init__(self, run: RecordedRun, rank: int | None = None, *, is_wanted: bool = True) -> None:
        self.problems: list[str] = []
        self._files: dict[tuple[int, int], dict[str, Path]] = {}
        self._open: OrderedDict[Path, TensorFile | None] = OrderedDict()
        if rank is None and len(run.ranks) == 1:
            rank = run.ranks[0]
        if rank is not None and is_wanted:
            self._folder = tensors_directory(run.directory, rank)
            if rank_directory(run.directory, rank).is_dir() and self._folder.is_dir():
                self._find()

    @property
    def has_any(self) -> bool:
        """Whether there are values at all."""
        return bool(self._files)

    @property
    def n_bytes(self) -> int:
        """The size of all files together, in bytes."""
        return sum(path.stat().st_size for files in self._files.values() for path in files.values())

    def batches(self) -> list[tuple[int, int]]:
        """Return (step, micro-batch) of which there are values, rising."""
        return sorted(self._files)

    def last_microbatch(self, step: int) -> int | None:
        """Return the last micro-batch of a step, whose files hold the parameters; None when there are no values."""
        return max((batch for of, batch in self._files if of == step), default=None)

    def site(self, site: str, step: int, microbatch: int) -> Mapping[str, Stored]:
        """Return all values of a module by key (`in[0]`, `out[0]#1`, `weight`, `weight.grad`); {} if there are none."""
        path = self._files.get((step, microbatch), {}).get(file_stem(site))
        found = self._file(path) if path is not None else None
        if found is None or found.metadata.get("site", site) != site:  # another one whose name looks the same on disk
            return {}
        return found.tensors

    def find(self, spot: Spot, step: int, microbatch: int) -> Stored | None:
        """Return the values of a spot; None when they were not recorded."""
        ending = _OF_PARAMETERS.get((spot.phase, spot.port))
        if ending is not None:
            site, _, name = spot.site.rpartition(".")
            last = self.last_microbatch(step)
            return self.site(site, step, last).get(f"{name}{ending}") if last is not None else None
        if spot.phase not in ("forward", "backward"):
            return None
        return self.site(spot.site, step, microbatch).get(f"{spot.port}#{spot.call}" if spot.call else spot.port)

    def _find(self) -> None:
        for folder in sorted(self._folder.glob("step-*/mb-*")):
            step, batch = _STEP.fullmatch(folder.parent.name), _MICROBATCH.fullmatch(folder.name)
            if step and batch and folder.is_dir():
                files = {path.stem: path for path in folder.glob("*.safetensors")}
                self._files[int(step[1]), int(batch[1])] = files

    def _file(self, path: Path) -> TensorFile | None:
        if path in self._open:
            self._open.move_to_end(path)
            return self._open[path]
        try:
            found = open_tensor_file(path)
        except CorruptRecordingError as error:
            self.problems.append(f"{error.where}: {error.why}")
            found = None
        self._open[path] = found
        while len(self._open) > _OPEN:
            self._open.popitem(last=False)
        return found


def file_stem(site: str) -> str:
    """Return the name (without ending) that the recorder gives the file of a site."""
    return re.sub(r"[^\w.#()\[\]-]", "_", site)[:200] or "(root)"
