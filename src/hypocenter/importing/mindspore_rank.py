"""What one rank of MindSpore has dumped, step by step: of a dump that is complete, or of one that is being written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypocenter.importing.mindspore_flow import Flow
from hypocenter.importing.mindspore_graph import read_graph
from hypocenter.importing.mindspore_items import Execution, Item, Sink, executions, joined, statistics
from hypocenter.importing.mindspore_names import flat, parse_file
from hypocenter.importing.mindspore_step import Kept, Step, constant
from hypocenter.importing.mindspore_tree import STATISTICS, Folder, graphs_of, names_in, orders_of, rows_of, setting
from hypocenter.importing.mindspore_values import Values
from hypocenter.nouns import StepRecord
from hypocenter.record.facts_file import Facts, ModuleFacts, OptimizerFacts, TensorFacts

MOST_ORDERED = 2_000_000
_OVERFLOW = "Opdebug.Node_OpDebug."
_MODES = {3: "only operators that overflowed were dumped", 4: "only inputs of operators that failed were dumped"}


@dataclass(slots=True, kw_only=True)
class Rank:
    """Reads the steps of one rank in their order.

    Args:
        rank: its number.
        into: where readings go.
        sketch: whether values are sketched.
        after: is given every micro-batch that was read, with its runs.
    """

    rank: int
    into: Sink
    sketch: bool = True
    after: Callable[[Step, list[Execution]], None] | None = None
    flows: dict[int, Flow] = field(default_factory=dict[int, Flow])
    orders: dict[int, dict[str, str]] = field(default_factory=dict[int, dict[str, str]])
    config: dict[str, Any] = field(default_factory=dict[str, Any])
    target: str = ""  # the device's kind, "" when it is not told
    _looked: set[int] = field(default_factory=set[int])  # graphs whose files were read
    _left: dict[tuple[str, str, str], Kept] = field(default_factory=dict[tuple[str, str, str], Kept])
    _last: int = -2

    def look(self, folders: Sequence[Folder]) -> None:
        """Read what lies beside the values: settings, and graphs that were not there before."""
        root = next((folder.root for folder in folders if folder.root is not None), None)
        if not self._looked:
            self._surroundings(root)
        if root is not None:
            self._graphs(root, {folder.graph for folder in folders} - self._looked)
        self._looked |= {folder.graph for folder in folders}

    def step(self, step: int, batches: Sequence[Sequence[Folder]], constants: Sequence[Folder] = ()) -> None:
        """Read one step.

        Args:
            step: its number.
            batches: folders of each micro-batch; the last one has the update.
            constants: folders of constants of graphs that ran for the first time.
        """
        if self._left and step != self._last + 1:
            self._remains(self._last + 1)
        self.into.begin(self.rank, step)
        losses: list[float] = []
        lr, n_bad, before = None, 0, self._left
        for number, folders in enumerate(batches):
            values = Values(self.into, may_mislabel=self.target in ("", "CPU"), sketch=self.sketch)
            for folder in constants if number == 0 else ():
                self._constants(folder, step, values)
            runs, parameters = executions(self._items(folders))
            reader = Step(
                into=self.into, step=step, flows=self.flows, orders=self.orders, values=values, before=before,
                microbatch=number,
            )  # fmt: skip
            reader.read(runs, parameters)
            if self.after is not None:
                self.after(reader, runs)
            losses += [reader.loss] if reader.loss is not None else []
            lr, n_bad = (reader.lr if reader.lr is not None else lr), n_bad + reader.n_bad_grads
            self._left, before = reader.after, {}
        loss = sum(losses) / len(losses) if losses else None
        self.into.end(StepRecord(step=step, n_microbatches=len(batches), loss=loss, lr=lr, n_bad_grads=n_bad))
        self._last = step

    def forget(self) -> None:
        """Forget what the last update left, so that nothing is said of it."""
        self._left = {}

    def end(self) -> None:
        """Tell what the last update left, and what the program is made of: no step is left."""
        if self._left:
            self._remains(self._last + 1)
        if self.flows:
            self.into.facts(self.rank, facts_of(self.flows.values()))

    def leave_out_evaluation(self, folders: Sequence[Folder]) -> list[Folder]:
        """Return the folders without those of graphs that only evaluate cells that another graph trains."""
        left_out = self._evaluations(folders)
        self.flows = {number: flow for number, flow in self.flows.items() if number not in left_out}
        return [folder for folder in folders if folder.is_constants or folder.graph not in left_out]

    def _surroundings(self, root: Path | None) -> None:
        self.config = setting(root, "data_dump.json")
        about = setting(root, "config.json")
        self.target = str(about.get("device_target", ""))[:40]
        version = str(about.get("ms_version", ""))[:40]
        self.into.set_version(
            " ".join(word for word in (f"MindSpore {version}" if version else "", self.target) if word)
        )
        mode = self._setting("common_dump_settings", "op_debug_mode")
        if mode in _MODES:
            self.into.note(_MODES[mode])
        if self._setting("common_dump_settings", "dump_mode") in (1, 2):
            self.into.note("only chosen operators were dumped: what is missing was not looked at")

    def _graphs(self, root: Path, wanted: set[int]) -> None:
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
                for row, _ in zip(rows_of(path), range(MOST_ORDERED), strict=False):
                    if row and "/" in row[0]:
                        self.orders[number][flat(row[0])] = row[0]

    def _evaluations(self, all_folders: Sequence[Folder]) -> set[int]:
        trained = {number for number, flow in self.flows.items() if {"forward", "backward"} <= flow.kinds}
        sites = {cell.site for number in trained for cell in self.flows[number].cells}
        found = {
            number for number, flow in self.flows.items()
            if number not in trained and not flow.kinds & {"backward", "optimizer"}
            and any(cell.site in sites for cell in flow.cells)
        }  # fmt: skip
        for number in sorted(found):
            folders = [folder for folder in all_folders if folder.graph == number and not folder.is_constants]
            if folders:
                self.into.note(
                    f"graph {number} only evaluates what another one trains: left out; to import it alone name "
                    f"{folders[0].path.parent}"
                )
        return found

    def _setting(self, group: str, key: str) -> Any:
        found = self.config.get(group)
        return found.get(key) if isinstance(found, dict) else None

    def _items(self, folders: Iterable[Folder]) -> list[Item]:
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

    def _remains(self, step: int) -> None:
        """Record parameters as the last update left them: a step of which nothing else was dumped."""
        self.into.note(f"step {step} holds only parameters and state, as the update of step {step - 1} left them")
        self.into.begin(self.rank, step)
        values = Values(self.into, may_mislabel=False, sketch=self.sketch)
        Step(into=self.into, step=step, flows={}, orders={}, values=values, before=self._left).read([], [])
        self.into.end(StepRecord(step=step, n_microbatches=1))
        self._left = {}


def facts_of(flows: Iterable[Flow]) -> Facts:
    """Return cells, their parameters and the optimizer, as graphs tell them."""
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
