"""One step of one rank of a MindSpore dump as readings: operators, cells, parameters, gradients, the loss."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hypocenter.compare.rows import GRAPH
from hypocenter.compare.weights.checkpoint import Tensor
from hypocenter.importing.mindspore_flow import Flow, calls
from hypocenter.importing.mindspore_graph import GraphParameter, Node
from hypocenter.importing.mindspore_items import Execution, Item, Sink
from hypocenter.importing.mindspore_names import Scope, flat, number_of, scope_of, scope_of_flat, site_of, stem_of
from hypocenter.importing.mindspore_values import Value, Values
from hypocenter.importing.statistics import value_of
from hypocenter.nouns import Phase, Reading
from hypocenter.optimizers.rule import words_of

_APART = 4  # orders of one run: parameters, inputs, outputs, the cell
_RATE = "learning_rate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A reading, and where its values lie."""

    reading: Reading
    of: str  # the module in whose file they are kept
    key: str
    tensor: Tensor | None


@dataclass(slots=True, kw_only=True)
class Step:
    """Turns the runs of one step into readings.

    Args:
        into: the recording, at this step.
        step: its number.
        flows: the graphs of this rank that could be read, by number.
        orders: full names of operators by their names in files, by graph; for those without a graph.
        values: reads the values.
        before: what the update of the step before left, for parameters of which this step has nothing else.
        microbatch: whose runs they are.
    """

    into: Sink
    step: int
    flows: dict[int, Flow]
    orders: dict[int, dict[str, str]]
    values: Values
    before: dict[tuple[str, str, str], Kept]
    microbatch: int = 0
    after: dict[tuple[str, str, str], Kept] = field(default_factory=dict)
    loss: float | None = None
    lr: float | None = None
    n_bad_grads: int = 0
    batch_size: int = 0  # of the first input that is no weight; 0: there was none
    _have: set[tuple[str, str, str]] = field(default_factory=set)  # (phase, site, port) of parameters
    _written: dict[str, int] = field(default_factory=dict)  # weight -> when an operator last wrote over it, in µs
    _order: int = 0
    _calls: dict[int, int] = field(default_factory=dict)  # by identity of a run
    _places: dict[int, tuple[Scope, str, str, Phase]] = field(default_factory=dict)

    def read(self, runs: list[Execution], parameters: list[Item]) -> None:
        """Read everything into the recording, without ending the step."""
        self._match(runs)
        self._number(runs)
        last_update = 0
        for run in runs:
            self._order += _APART
            if self._places[id(run)][0].kind == "optimizer":
                last_update = max(last_update, *(i.name.time_us for i in run.items.values()))
                self._update(run)
            else:
                self._operator(run)
                self._note_write(run)
        self._cells(runs)
        self._results(runs)
        for item in parameters:
            self._order += _APART
            self._parameter(item, runs, last_update)
        for key, kept in self.before.items():
            if key not in self._have:
                self._give(replace(kept, reading=replace(kept.reading, step=self.step)))

    def place_of(self, run: Execution) -> tuple[Scope, str, str, Phase]:
        """Return the scope, site, class and phase of a run that was read."""
        return self._places[id(run)]

    def phase_of(self, run: Execution) -> Phase:
        """Return the phase of a run that was read."""
        return self._places[id(run)][3]

    def _match(self, runs: list[Execution]) -> None:
        """Find the operator of each run, and check by the values that flow between them that it is the right one."""
        for graph, flow in self.flows.items():
            of_graph = [run for run in runs if run.graph == graph]
            ways = flow.candidates({(run.op_type, run.name) for run in of_graph})
            found = [self._contradictions(flow, of_graph, way) for way in ways]
            best = min(range(len(ways)), key=lambda i: len(found[i]))
            doubtful = {
                (op_type, stem_of(name)) for op_type, name in found[best]
                if any(way.get((op_type, name)) is not ways[best].get((op_type, name)) for way in ways)
            }  # fmt: skip
            for run in of_graph:
                is_told = (run.op_type, stem_of(run.name)) not in doubtful
                run.node = ways[best].get((run.op_type, run.name)) if is_told else None
            if doubtful:
                self.into.note(f"{len(doubtful):,} kinds of operators are in no graph: values do not flow as it says")
        if runs and not self.flows:
            self.into.note(
                "there is no graph (.ir): cells are told by the names of operators alone, and what enters and leaves a "
                "cell, which parameter a gradient is of, the loss, and lines of code are not known"
            )

    def _contradictions(
        self, flow: Flow, runs: list[Execution], way: dict[tuple[str, str], Node]
    ) -> set[tuple[str, str]]:
        """Return operators (type, name) between which other values flow than the graph says."""
        by_node: dict[int, list[Execution]] = {}
        for run in runs:
            node = way.get((run.op_type, run.name))
            if node is not None:
                by_node.setdefault(id(node), []).append(run)
        guilty: set[tuple[str, str]] = set()
        for run in runs:
            node = way.get((run.op_type, run.name))
            if node is None or len(by_node[id(node)]) > 1:  # in a loop values come from the round before
                continue
            for slot, source, output in flow.sources(node):
                before = by_node.get(id(source), [])
                given = before[0].items.get(("output", output)) if len(before) == 1 else None
                taken = run.items.get(("input", slot))
                if given is not None and taken is not None and not self.values.agree(given, taken):
                    guilty.update(((before[0].op_type, before[0].name), (run.op_type, run.name)))
        return guilty

    def _number(self, runs: list[Execution]) -> None:
        """Place each run; number those of one site and phase in the order of the program, not of threads."""
        keys: dict[int, tuple[str, str, int, int]] = {}
        for run in runs:
            place = self._places[id(run)] = self._place(run)
            at = run.node.index if run.node is not None else number_of(run.name)
            keys[id(run)] = place[1], place[3], at, run.time_us
        numbers = calls(keys.values())
        self._calls = {run: numbers[key] for run, key in keys.items()}

    def _place(self, run: Execution) -> tuple[Scope, str, str, Phase]:
        """Return the scope, site, class and phase of a run."""
        flow = self.flows.get(run.graph)
        op = run.op_type
        if run.node is not None and flow is not None:
            scope = flow.scope(run.node)
            forward = flow.forward_of(run.node) if scope.kind == "backward" else None
            op = forward.op if forward is not None else op
        else:
            full = self.orders.get(run.graph, {}).get(run.name)
            scope = scope_of(full) if full else scope_of_flat(run.name, run.op_type)
        site = ".".join(part for part in (scope.site, op) if part)
        phase: Phase = scope.kind
        return scope, site, run.op_type, phase

    def _operator(self, run: Execution) -> None:
        scope, site, module, phase = self._places[id(run)]
        flow = self.flows.get(run.graph)
        is_backward = phase == "backward"
        for item in run.inputs:
            slot = item.name.slot
            weight = flow.weight(run.node, slot) if flow is not None and run.node is not None else None
            if weight is not None:
                if not is_backward and not scope.recompute:
                    self._weight(run, item, weight)
                if is_backward:
                    continue
            is_gradient = is_backward and flow is not None and run.node is not None and flow.is_gradient(run.node, slot)
            port = f"{'grad_out' if is_gradient else 'in'}[{slot}]"
            self._observed(run, item, site, port, phase, module, self._order + 1, scope)
        for item in run.outputs:
            port = f"{'grad_in' if is_backward else 'out'}[{item.name.slot}]"
            self._observed(run, item, site, port, phase, module, self._order + 2, scope)
        loss = flow.loss if flow is not None else None
        if run.node is not None and run.node is loss and run.outputs:
            self._loss(run)

    def _observed(
        self, run: Execution, item: Item, site: str, port: str, phase: Phase, module: str, order: int, scope: Scope
    ) -> None:
        value = self.values.of(run, item)
        if value is None or (item.name.io == "input" and _is_setting(value)):
            return
        call = self._calls[id(run)]
        flow = self.flows.get(run.graph)
        line = flow.source(run.node) if flow is not None and run.node is not None else None
        reading = self._reading(
            value, phase, site, port, order, call=call, module=module, op=f"{GRAPH}{module}",
            recompute=scope.recompute, source=line,
        )  # fmt: skip
        keeps = item.name.io == "output" and not scope.recompute
        key = f"{port}#{call}" if call else port
        self._give(Kept(reading=reading, of=site, key=key, tensor=value.tensor if keeps else None))

    def _loss(self, run: Execution) -> None:
        value = self.values.of(run, run.outputs[0])
        if value is None or value.summary.n != 1:
            return
        self.loss = value_of(value.summary) if value.summary.n_nonfinite or "sum" not in value.lacks else None
        if self.loss is not None:
            self._give_plain(self._reading(value, "loss", "loss", "value", self._order + 3))

    def _cells(self, runs: list[Execution]) -> None:
        """Give the inputs and outputs of cells, by operators that ran once."""
        by_node: dict[int, list[Execution]] = {}
        for run in runs:
            if run.node is not None:
                by_node.setdefault(id(run.node), []).append(run)
        place = {id(run): i for i, run in enumerate(runs)}
        for flow in self.flows.values():
            for cell in flow.cells:
                phase: Phase = (
                    "loss" if cell.kind and cell.site.partition(".")[0] in ("_loss_fn", "loss_fn") else "forward"
                )
                for port, tap in (("in[0]", cell.entry), ("out[0]", cell.leave)):
                    found = by_node.get(id(tap.node), []) if tap is not None else []
                    item = (
                        found[0].items.get(("input" if tap.is_input else "output", tap.slot))
                        if tap and len(found) == 1
                        else None
                    )
                    value = self.values.of(found[0], item) if item is not None else None
                    if value is None or tap is None:
                        continue
                    order = (place[id(found[0])] + 1) * _APART + (0 if tap.is_input else 3)
                    reading = self._reading(
                        value, phase, cell.site, port, order, module=cell.kind, source=flow.source(tap.node)
                    )  # fmt: skip
                    self._give(Kept(reading=reading, of=cell.site, key=port, tensor=value.tensor))

    def _results(self, runs: list[Execution]) -> None:
        """Give the outputs of the model: what a graph without backward returns."""
        for flow in self.flows.values():
            for i, node in enumerate(flow.results):
                run = next((run for run in reversed(runs) if run.node is node), None)
                value = self.values.of(run, run.outputs[0]) if run is not None and run.outputs else None
                if value is None or node is None or ("forward", "", f"out[{i}]") in self._have:
                    continue
                order = (runs.index(run) + 1) * _APART + 3 if run is not None else self._order
                reading = self._reading(value, "forward", "", f"out[{i}]", order, source=flow.source(node))
                self._give(Kept(reading=reading, of="", key=f"out[{i}]", tensor=value.tensor))

    def _note_write(self, run: Execution) -> None:
        flow = self.flows.get(run.graph)
        target = flow.assigned(run.node) if flow is not None and run.node is not None else None
        if target is not None:
            self._written[target.name] = max(item.name.time_us for item in run.items.values())

    def _weight(self, run: Execution, item: Item, weight: GraphParameter) -> None:
        """Give a parameter, or optimizer state of one, as it was first read: before any update of this step."""
        key = self._key(self.flows[run.graph], weight)
        if key is None or key in self._have or weight.name in self._written or run.op_type.startswith("Assign"):
            return
        value = self.values.of(run, item)
        if value is None:
            return
        self._give(self._of_parameter(value, *key, self._order))

    def _update(self, run: Execution) -> None:
        """Give what an optimizer's operator took; what it left is told by the parameters."""
        flow, node = self.flows.get(run.graph), run.node
        found = flow.updated(node) if flow is not None and node is not None else None
        if found is None:
            self._unknown_update(run)
            return
        parameter, slot = found
        item = run.items.get(("input", slot))
        value = self.values.of(run, item) if item is not None else None
        if value is None:
            return
        self.into.note(
            "gradients are as the optimizer got them: after clipping, decay and loss scale, if there were any"
        )
        rate = run.items.get(("input", flow.rate(node))) if flow is not None and node is not None else None
        lr = self.values.of(run, rate) if rate is not None else None
        if lr is not None and lr.summary.n == 1 and not lr.summary.n_nonfinite and not lr.lacks:
            self.lr = lr.summary.sum
        site = site_of(tuple(parameter.name.split(".")))
        self.n_bad_grads += bool(value.summary.n_nonfinite)
        self._give(self._of_parameter(value, "grad", site, "grad", self._order + 1))

    def _unknown_update(self, run: Execution) -> None:
        """Give an optimizer's operator of unknown rule as an operator, which is not compared."""
        scope, site, _, _ = self._places[id(run)]
        for item in (*run.inputs, *run.outputs):
            value = self.values.of(run, item)
            if value is None or _is_setting(value):
                continue
            port = f"{'in' if item.name.io == 'input' else 'out'}[{item.name.slot}]"
            reading = self._reading(
                value, "optimizer", site, port, self._order + 1, call=self._calls[id(run)], module=scope.kind_of_cell,
                op=run.op_type,
            )  # fmt: skip
            self._give_plain(reading)

    @staticmethod
    def _key(flow: Flow, weight: GraphParameter) -> tuple[Phase, str, str] | None:
        """Return phase, site and port of a weight; None for a rate or a counter."""
        prefix, _, rest = weight.name.partition(".")
        if rest in flow.weights:
            word = words_of("SGD").get(prefix, prefix)  # the class is not told; of all SGD has most words
            return "optimizer", site_of(tuple(rest.split("."))), word
        return ("param", site_of(tuple(weight.name.split("."))), "value") if flow.is_of_network(weight) else None

    def _parameter(self, item: Item, runs: list[Execution], last_update: int) -> None:
        value = self.values.of(None, item)
        if value is None:
            return
        name = item.name.name
        flow = self.flows.get(item.graph)
        known = flow.names.get(name) if flow is not None else None
        if flow is None or known is None:
            self._nameless(item, value, runs, is_after=0 < last_update <= item.name.time_us)
            return
        if not known.is_weight:
            site = f"batch.{known.name}"
            self.batch_size = self.batch_size or next(iter(value.shape), 0)
            self._give(Kept(reading=self._reading(value, "data", site, "value", 0), of=site, key="value", tensor=None))
            return
        if known.name == _RATE and value.summary.n == 1 and not value.summary.n_nonfinite and not value.lacks:
            self.lr = value.summary.sum
            return
        key = self._key(flow, known)
        if key is not None:
            written = max(last_update, self._written.get(known.name, 0))
            self._held(value, *key, is_after=0 < written <= item.name.time_us)

    def _nameless(self, item: Item, value: Value, runs: list[Execution], *, is_after: bool) -> None:
        """Give a parameter without a graph: the cells tell where the dots in its name were."""
        sites = {self._places[id(run)][0].site for run in runs}
        name = item.name.name
        owner = max((s for s in sites if s and name.startswith(f"{flat(s)}_")), key=len, default="")
        self.into.note("without a graph `.` and `_` in names of parameters cannot be told apart: cells were looked for")
        if owner:
            self._held(value, "param", f"{owner}.{name[len(owner) + 1 :]}", "value", is_after=is_after)
        else:
            reading = self._reading(value, "data", f"batch.{name}", "value", 0)
            self._give(Kept(reading=reading, of=f"batch.{name}", key="value", tensor=None))

    def _held(self, value: Value, phase: Phase, site: str, port: str, *, is_after: bool) -> None:
        """Give a parameter or its state; what an update left is kept for the begin of the next step."""
        kept = self._of_parameter(value, phase, site, port, self._order)
        if is_after:
            self.after[phase, site, port] = kept
        elif (phase, site, port) not in self._have:
            self._give(kept)

    def _of_parameter(self, value: Value, phase: Phase, site: str, port: str, order: int) -> Kept:
        owner, _, name = site.rpartition(".")
        key = {"param": name, "grad": f"{name}.grad"}.get(phase, "")
        tensor = value.tensor if key else None
        reading = self._reading(value, phase, site, port, order)
        return Kept(reading=reading, of=owner, key=key, tensor=tensor)

    def _reading(self, value: Value, phase: Phase, site: str, port: str, order: int, **more: Any) -> Reading:
        return Reading(
            step=self.step, microbatch=self.microbatch, phase=phase, site=site, port=port, order=order,
            dtype=value.dtype, shape=value.shape, summary=value.summary, digest=value.digest, lacks=value.lacks, **more,
        )  # fmt: skip

    def _give(self, kept: Kept) -> None:
        reading = kept.reading
        if reading.phase in ("param", "optimizer") or not reading.site:
            self._have.add((reading.phase, reading.site, reading.port))
        self.into.add(reading)
        if kept.tensor is not None:
            self.into.keep(kept.of, kept.key, self.microbatch, kept.tensor)

    def _give_plain(self, reading: Reading) -> None:
        self.into.add(reading)


def _is_setting(value: Value) -> bool:
    """Return whether an input is a number that the program gave, such as a dimension, and no tensor."""
    return not value.shape and not value.dtype.startswith(("float", "bfloat", "complex"))


def constant(value: Value, step: int, site: str) -> Reading:
    """Return the reading of a constant of a graph: its infinities are the program's own."""
    return Reading(
        step=step, microbatch=0, phase="data", site=site, port="value", order=0, dtype=value.dtype, shape=value.shape,
        summary=value.summary, digest=value.digest, lacks=value.lacks, literal_inf=True,
    )  # fmt: skip
