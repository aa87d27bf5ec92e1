"""GRAPH mode: MindSpore dumps the calls that were asked for, and after each step its dump becomes rows and is deleted.

MindSpore reads MINDSPORE_DUMP_CONFIG when it compiles the first graph, not when it is imported: so it is set before
the first call of a graph in GRAPH mode, and a program in PyNative mode never has it. Which calls are dumped is told
call by call: every call gets a number as its "iteration", and those that are not wanted the number 0, which the
configuration leaves out.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]

from hypocenter import schedule
from hypocenter.diagnose.evidence import Evidence
from hypocenter.importing.left_over import note_owner
from hypocenter.importing.mindspore_live import MOST_CALLS, LiveDump, LiveRows, note_call
from hypocenter.nouns import LEVELS, Reading
from hypocenter.record.layout import DUMP_FOLDER
from hypocenter.session.evidence_file import write_evidence
from hypocenter.session.mindspore.seams import Context, GraphStep
from hypocenter.session.mindspore.seams import Graphs as Seam
from hypocenter.summary.reducers.mindspore import MindSporeReducer
from hypocenter.tap.mindspore.calls import optimizer_in
from hypocenter.tap.mindspore.graph_calls import GraphCalls, name_scopes, trains, wait
from hypocenter.tap.mindspore.names import is_optimizer
from hypocenter.tap.mindspore.parameters import parameter_readings

VARIABLE = "MINDSPORE_DUMP_CONFIG"
_ROOM = 4  # times what a step takes must be free
_BLIND = ("-nonfinite-loss", "-nonfinite-grad", "-skipped-step")  # ids of evidence that knows of no operator
_NONE = 0  # the number of calls that are not dumped
PLAIN_PATH = re.compile(r"/[A-Za-z0-9_/-]+")  # what MindSpore 2.10 takes; it refuses dots and blanks
_NAME_PART = "[^/]*"


class Graphs(Seam):
    """The dump of one process. Off below level modules, and until a graph is called in GRAPH mode."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._config = context.config
        self._is_wanted = LEVELS.index(self._config.level) >= LEVELS.index("modules")
        self._due = schedule.parse(self._config.schedule)
        self._has_params = schedule.parse(self._config.param_schedule)
        self._state: list[Reading] = []
        self._dump: LiveDump | None = None
        self._rows: LiveRows | None = None
        self._link: Path | None = None
        self._is_set = False
        self._number = 0
        self._calls: list[int] = []
        self._at: int | None = None  # the step under way, since a graph was called in it
        self._said: set[str] = set()
        self._named: set[int] = set()  # ids of what was called, whose cells have their names
        self._is_paused = False
        self._n_evidence = 0
        self._has_size = False

    def attach(self) -> Any:
        """Listen to calls of graphs."""
        GraphCalls(self.context.patches, self).attach()
        return self._end

    def before_graph(self, owner: Any) -> None:
        """Have the call of a graph dumped, if its step is due: the graph is about to be called."""
        if not self._is_wanted:
            self._say_once(
                "GRAPH mode: at level sentinel what Python sees alone is recorded; --level modules looks inside"
            )
            return
        if self._dump is None and not self._begin():
            self._is_wanted = False
            return
        if not trains(owner):
            _number_calls(_NONE)
            return
        if id(owner) not in self._named:
            self._named.add(id(owner))
            name_scopes(owner, self.context.names)
        if self._at is None:
            self._at = self.context.clock.step  # an optimizer is called when the clock shows the next step already
        step = self._at
        self._note_state(owner, step)
        if not (self._due(step) and self._has_room()) or self._number >= MOST_CALLS:
            _number_calls(_NONE)
            return
        self._number += 1
        self._calls.append(self._number)
        assert self._dump is not None
        note_call(self._dump.folder, self._number, step)
        _number_calls(self._number)

    def after_graph(self, owner: Any) -> None:
        """Take the configuration out of the environment: MindSpore has read it, and no other process is to see it."""
        if self._is_set:
            os.environ.pop(VARIABLE, None)
            self._is_set = False
        if self._dump is not None:
            wait()
            _number_calls(_NONE)

    @property
    def is_dumping(self) -> bool:
        """Whether calls of graphs are looked into."""
        return self._dump is not None

    def collect(self, step: int, *, scale: float | None, skipped: bool, healthy_steps: int, finding: str) -> GraphStep:
        """Return all that was dumped of a step that is over, as rows."""
        calls, self._calls, self._at = self._calls, [], None
        if self._dump is None or self._rows is None or not calls:
            return GraphStep()
        if not self._dump.read(step, calls):
            self._say_once(
                "GRAPH mode: MindSpore dumped nothing: it had compiled a graph before GRAPH mode was set, or dumps are "
                "not part of this build"
            )
            return GraphStep()
        self._say_size()
        for line in self._rows.problems:
            self._say_once(f"GRAPH mode: {line}")
        evidence = self._dump.evidence
        if evidence is not None and self._n_evidence < self._config.max_replays:
            trigger = "skipped-step" if skipped else evidence.trigger
            finding = self._write(
                replace(
                    evidence, id=finding if finding.endswith(_BLIND) else evidence.id, trigger=trigger,
                    loss_scale=scale, healthy_steps=healthy_steps, world_size=self.context.rank()[1],
                )
            )  # fmt: skip
        state, self._state = self._state, []
        have = {(row.phase, row.site, row.port) for row in state}
        rows = [*state, *(row for row in self._rows.rows if (row.phase, row.site, row.port) not in have)]
        return GraphStep(rows=rows, record=self._rows.record, finding=finding)

    def _say_size(self) -> None:
        """Say once how much is dumped in one step."""
        assert self._dump is not None
        if not self._has_size:
            self._has_size = True
            self.context.warn(
                f"GRAPH mode: a step is dumped in {self._dump.n_files:,} files, {self._dump.n_bytes >> 10:,} KiB: "
                "they are read and deleted; --schedule every=100 looks at fewer steps"
            )

    def _has_room(self) -> bool:
        """Return whether the disk can take one more step."""
        assert self._dump is not None
        try:
            free = shutil.disk_usage(self._dump.folder).free
        except OSError:
            return True
        has_room = free > _ROOM * self._dump.n_bytes
        if not has_room:
            self._say_once(f"GRAPH mode: steps are left out: the disk has {free >> 20:,} MiB left")
        return has_room

    def _write(self, evidence: Evidence) -> str:
        """Write evidence in place of what says less of the same step, and return its id."""
        self._n_evidence += 1
        say = self._say_once
        return write_evidence(self.context.rank_directory() / "bundles", evidence, lambda w: say(f"GRAPH mode: {w}"))

    @contextlib.contextmanager
    def paused(self) -> Generator[None, None, None]:
        """Dump nothing while a replay runs in this context."""
        was, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = was

    def _note_state(self, owner: Any, step: int) -> None:
        """Keep parameters and optimizer state before a call that updates them: the dump has them as they are after."""
        optimizer = optimizer_in(owner)
        if optimizer is None or not self._has_params(step) or is_optimizer(owner):
            return  # an optimizer that Python calls is seen there
        reducer = MindSporeReducer(histogram=self._config.histogram, sketch=self._config.sketch)
        self._state = parameter_readings(
            self.context.names, optimizer, (), reducer, step, clock=self.context.clock, config=self._config
        )

    def _begin(self) -> bool:
        """Write the configuration of the dump and name it to MindSpore; return whether that can be done."""
        if os.environ.get(VARIABLE):
            self._say_once(f"GRAPH mode: the program dumps by itself ({VARIABLE} is set): hypocenter import reads that")
            return False
        if not hasattr(ms._c_expression, "_set_init_iter"):
            self._say_once(
                f"GRAPH mode: this MindSpore ({ms.__version__}) cannot number its dumps; nothing is looked at"
            )
            return False
        rank, _ = self.context.rank()
        folder = self.context.rank_directory() / DUMP_FOLDER
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        note_owner(folder)
        file = folder / "settings.json"
        is_statistic = ms.get_context("device_target") == "Ascend" and self._config.level == "modules"
        text = settings(
            self._plain(folder), iterations=f"1-{MOST_CALLS}", sites=self._config.sites, is_statistic=is_statistic
        )
        file.write_text(text, encoding="utf-8")
        os.environ[VARIABLE] = str(file)
        self._is_set = True
        self._rows = LiveRows(self._config, self.context.directory, rank)
        self._dump = LiveDump(folder, rank, self._rows, sketch=self._config.sketch)
        return True

    def _plain(self, folder: Path) -> str:
        """Return a path that MindSpore takes: the folder's own, or that of a link to it."""
        path = str(folder.absolute())
        if PLAIN_PATH.fullmatch(path):
            return path
        self._link = Path(tempfile.gettempdir()) / f"hypocenter-{os.getpid()}"
        self._link.unlink(missing_ok=True)
        self._link.symlink_to(folder.absolute())
        return str(self._link)

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self.context.warn(text)

    def _end(self) -> None:
        if self._dump is not None:
            self._dump.end()
        if self._link is not None:
            with suppress(OSError):
                self._link.unlink()


def _number_calls(number: int) -> None:
    ms._c_expression._set_init_iter(number)


def settings(path: str, *, iterations: str, sites: Sequence[str], is_statistic: bool) -> str:
    """Return the text of the dump's configuration file.

    Args:
        path: absolute; where to dump, of letters, digits, `-` and `_` alone.
        iterations: numbers of calls of graphs: "0|5-8|100-120" or "all".
        sites: globs of cells whose operators are wanted; empty: all operators.
        is_statistic: statistics instead of values. MindSpore refuses them on a CPU.
    """
    common: dict[str, Any] = {
        "op_debug_mode": 0, "dump_mode": 1 if sites else 0, "path": path, "net_name": "Net", "iteration": iterations,
        "saved_data": "statistic" if is_statistic else "tensor", "input_output": 0,
        "kernels": [kernel_of(glob) for glob in sites], "support_device": list(range(8)),
    }  # fmt: skip
    end_to_end: dict[str, Any] = {"enable": True, "trans_flag": True}
    if is_statistic:
        common["statistic_category"] = [
            "max", "min", "avg", "count", "zero count", "nan count", "negative inf count", "positive inf count",
            "l2norm",
        ]  # fmt: skip
        end_to_end["stat_calc_mode"] = "host"
    return json.dumps({"common_dump_settings": common, "e2e_dump_settings": end_to_end}, indent=1)


def kernel_of(glob: str) -> str:
    """Turn `layers.*.fc` into MindSpore's regular expression on full names of operators.

    A cell is `name-Class` in them, below what wraps the network: `Default/network-WithLossCell/_backbone-Net/...`.
    """
    parts = [_part(part) for part in glob.split(".") if part]
    return "name-regex((.*/)?" + "/".join(f"{part}-{_NAME_PART}" for part in parts) + "/.*)"


def _part(part: str) -> str:
    text = "".join({"*": _NAME_PART, "?": "[^/]"}.get(c, c if c in "[]" else re.escape(c)) for c in part)
    return text.replace("[!", "[^")
