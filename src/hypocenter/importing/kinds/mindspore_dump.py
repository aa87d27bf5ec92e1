"""MindSpore's Dump, of graphs: npy files and statistic.csv of each operator, with graphs and execution order beside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from hypocenter.importing.catalogue import Head, NotADumpError, importer
from hypocenter.importing.mindspore_flow import Flow
from hypocenter.importing.mindspore_graph import read_graph
from hypocenter.importing.mindspore_items import Item, executions, joined
from hypocenter.importing.mindspore_names import flat, parse_file
from hypocenter.importing.mindspore_statistic import statistics
from hypocenter.importing.mindspore_step import Kept, Step, constant
from hypocenter.importing.mindspore_tree import (
    STATISTICS,
    Folder,
    folders_of,
    graphs_of,
    names_in,
    orders_of,
    rows_of,
    setting,
)
from hypocenter.importing.mindspore_values import Values
from hypocenter.importing.recording import Recording
from hypocenter.record.facts_file import Facts, ModuleFacts, OptimizerFacts, TensorFacts

_MARKS = (".dump_metadata/data_dump.json", ".dump_metadata/config.json")
_OVERFLOW = "Opdebug.Node_OpDebug."
_MODES = {3: "only operators that overflowed were dumped", 4: "only inputs of operators that failed were dumped"}
_MOST_ORDERED = 2_000_000


def accepts(head: Head) -> float:
    """A folder with names of dumped tensors in it."""
    if not head.is_directory:
        return 0.0
    if any(name.endswith(_MARKS) for name in head.names):
        return 0.95
    last = [name.rpartition("/")[2] for name in head.names]
    if any(parse_file(name) is not None for name in last):
        return 0.85
    return 0.4 if STATISTICS in last else 0.0


@importer("mindspore-dump", accepts=accepts)
def read(path: Path, into: Recording) -> None:
    """MindSpore's Dump of graphs: npy files, statistic.csv, mapping.csv, graphs (.ir); several ranks."""
    if not path.is_dir():
        raise NotADumpError("no folder", where=str(path), fix="name the folder that holds rank_*/")
    folders = folders_of(path)
    if not folders:
        raise NotADumpError("no dumped tensor in it", where=str(path), fix="name the folder that holds rank_*/")
    into.world_size = max(folder.rank for folder in folders) + 1
    if into.world_size > _MOST_ORDERED:
        raise NotADumpError(f"rank {into.world_size - 1:,} in it", where=str(path))
    into.note("each operator is a site below its cell, with its type as last part; micro-batches cannot be told")
    for rank, of_rank in groupby(folders, key=lambda folder: folder.rank):
        _Rank(rank=rank, folders=list(of_rank), into=into).read()


@dataclass(slots=True, kw_only=True)
class _Rank:
    """Reads what one rank has dumped."""

    rank: int
    folders: list[Folder]
    into: Recording
    flows: dict[int, Flow] = field(default_factory=dict)
    orders: dict[int, dict[str, str]] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)

    def read(self) -> None:
        """All of it into the recording."""
        target = self._surroundings()
        left_out = self._left_out()
        self.flows = {number: flow for number, flow in self.flows.items() if number not in left_out}
        constants = [folder for folder in self.folders if folder.is_constants]
        steps = [folder for folder in self.folders if not folder.is_constants and folder.graph not in left_out]
        left: dict[tuple[str, str, str], Kept] = {}
        at = -2
        for step, of_step in groupby(steps, key=lambda folder: folder.step):
            if left and step != at + 1:
                self._remains(at + 1, left)
                left = {}
            self.into.begin(self.rank, step)
            values = Values(self.into, may_mislabel=target in ("", "CPU"))
            for folder in constants:
                self._constants(folder, step, values)
            constants = []
            runs, parameters = executions(self._items(list(of_step)))
            reader = Step(
                into=self.into, step=step, flows=self.flows, orders=self.orders, values=values, before=left
            )  # fmt: skip
            reader.read(runs, parameters)
            left, at = reader.after, step
        if left:
            self._remains(at + 1, left)
        if self.flows:
            self.into.facts(self.rank, _facts(self.flows.values()))

    def _surroundings(self) -> str:
        """Read what lies beside the values; the device's kind, "" when it is not told."""
        root = next((folder.root for folder in self.folders if folder.root is not None), None)
        self.config = setting(root, "data_dump.json")
        about = setting(root, "config.json")
        target = str(about.get("device_target", ""))[:40]
        version = str(about.get("ms_version", ""))[:40]
        self.into.set_version(" ".join(word for word in (f"MindSpore {version}" if version else "", target) if word))
        mode = self._setting("common_dump_settings", "op_debug_mode")
        if mode in _MODES:
            self.into.note(_MODES[mode])
        if self._setting("common_dump_settings", "dump_mode") in (1, 2):
            self.into.note("only chosen operators were dumped: what is missing was not looked at")
        if root is not None:
            self._graphs(root)
        return target

    def _graphs(self, root: Path) -> None:
        wanted = {folder.graph for folder in self.folders}
        for number, path in graphs_of(root).items():
            if number in wanted:
                graph, problem = read_graph(path)
                if problem:
                    self.into.problem(problem)
                if graph.nodes:
                    self.flows[number] = Flow(graph)
        for number, path in orders_of(root).items():
            if number in wanted and number not in self.flows:
                self.orders[number] = {}
                for row, _ in zip(rows_of(path), range(_MOST_ORDERED), strict=False):
                    if row and "/" in row[0]:
                        self.orders[number][flat(row[0])] = row[0]

    def _left_out(self) -> set[int]:
        """Graphs of evaluation: they compute cells that another graph trains, without backward of their own."""
        trained = {number for number, flow in self.flows.items() if {"forward", "backward"} <= flow.kinds}
        sites = {cell.site for number in trained for cell in self.flows[number].cells}
        found = {
            number for number, flow in self.flows.items()
            if number not in trained and not flow.kinds & {"backward", "optimizer"}
            and any(cell.site in sites for cell in flow.cells)
        }  # fmt: skip
        for number in sorted(found):
            folders = [folder for folder in self.folders if folder.graph == number and not folder.is_constants]
            if folders:
                self.into.note(
                    f"graph {number} only evaluates what another one trains: left out; to import it alone name "
                    f"{folders[0].path.parent}"
                )
        return found

    def _setting(self, group: str, key: str) -> Any:
        found = self.config.get(group)
        return found.get(key) if isinstance(found, dict) else None

    def _items(self, folders: list[Folder]) -> list[Item]:
        found: list[Item] = []
        for folder in folders:
            found += joined(self._files(folder), self._rows(folder))
        return found

    def _files(self, folder: Folder) -> Iterator[Item]:
        n_overflows = n_unknown = 0
        for file, told in names_in(folder.path):
            name = parse_file(told)
            if name is not None:
                yield Item(name=name, graph=folder.graph, path=folder.path / file)
                continue
            n_overflows += file.startswith(_OVERFLOW)
            n_unknown += file.endswith((".npy", ".bin")) and not file.startswith(_OVERFLOW)
        if n_overflows:
            self.into.note(f"step {folder.step}: MindSpore saw {n_overflows:,} operators overflow on the device")
        if n_unknown:
            self.into.problem(f"{folder.path}: {n_unknown:,} files with names of another kind are left out")

    def _rows(self, folder: Folder) -> Iterator[Item]:
        path = folder.path / STATISTICS
        if not path.is_file():
            return
        for row in statistics(path, self.into.problem):
            yield Item(name=row.name, graph=folder.graph, row=row)
        self.into.note("statistic.csv: histograms and zeros are not known where there are no values")

    def _constants(self, folder: Folder, step: int, values: Values) -> None:
        for item in self._files(folder):
            value = values.of(None, item)
            if value is not None and value.shape:
                self.into.add(constant(value, step, f"constants.{folder.graph}.{item.name.name}"))

    def _remains(self, step: int, left: dict[tuple[str, str, str], Kept]) -> None:
        """Parameters as the last update left them: a step of which nothing else was dumped."""
        self.into.note(f"step {step} holds only parameters and state, as the update of step {step - 1} left them")
        self.into.begin(self.rank, step)
        Step(
            into=self.into, step=step, flows={}, orders={}, values=Values(self.into, may_mislabel=False), before=left
        ).read([], [])


def _facts(flows: Iterable[Flow]) -> Facts:
    modules: dict[str, str] = {}
    weights: dict[str, dict[str, TensorFacts]] = {}
    optimizers: list[OptimizerFacts] = []
    for flow in flows:
        modules.update({cell.site: cell.kind for cell in flow.cells})
        updated = [found[0].name for node in flow.operators if (found := flow.updated(node)) is not None]
        for parameter in flow.weights.values():
            owner, _, name = ".".join(parameter.name.split(".")).rpartition(".")
            if owner in modules and parameter.shape:
                trained = parameter.name in updated
                fact = TensorFacts(shape=parameter.shape, dtype=parameter.dtype, trained=trained)
                weights.setdefault(owner, {})[name] = fact
        kinds = [flow.scope(n).cells for n in flow.operators if flow.scope(n).kind == "optimizer"]
        kind = next((cells[0][1] for cells in kinds if cells and cells[0][1]), "")
        if kind:
            optimizers.append(OptimizerFacts(kind=kind))
    return Facts(
        modules=tuple(ModuleFacts(path=s, kind=k, parameters=weights.get(s, {})) for s, k in modules.items()),
        optimizers=tuple(optimizers),
    )
