"""Dumps of msprobe (MindStudio Probe) 8.x and 26.x, of PyTorch and MindSpore: levels L0, L1, mix and debug."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hypocenter.compare.weights.checkpoint import CheckpointError, Tensor
from hypocenter.importing.catalogue import Head, NotADumpError, importer
from hypocenter.importing.entries import Attributes, entries, last_of
from hypocenter.importing.layout_of_steps import Part, parts_of
from hypocenter.importing.msprobe_step import OPTIMIZER, Call, Name, Sites, Step, parse
from hypocenter.importing.recording import Recording
from hypocenter.importing.statistics import OF_STATISTICS, shape_of, summary_of, value_of
from hypocenter.importing.tensor_file import open_tensor, summary_of_values
from hypocenter.importing.text import frame_of, own_line
from hypocenter.nouns import Reading, Source, StepRecord, Summary

FILES = ("dump.json", "debug.json")
VALUES = "dump_tensor_data"
_BESIDE_AT_MOST = 1 << 30  # bytes of stack.json or construct.json
_MOST_LEAVES = 100_000  # tensors of one entry
_DEEPEST = 64
_SCALING = ("__mul__", "mul", "mul_", "__truediv__", "div", "div_", "__rmul__", "true_divide")


def accepts(head: Head) -> float:
    """Return how sure it is msprobe's dump.json, or a folder with such files (0 to 1)."""
    if head.is_directory:
        return 0.9 if any(name.rpartition("/")[2] in FILES for name in head.names) else 0.0
    start = head.start[:4096].lstrip()
    has_keys = start.startswith(b"{") and b'"task"' in start and b'"level"' in start
    return 0.95 if has_keys else 0.0


@importer("msprobe", accepts=accepts)
def read(path: Path, into: Recording) -> None:
    """msprobe 8.x and 26.x: dump.json or debug.json with stack.json, construct.json and tensor files beside it."""
    parts = parts_of(path, FILES.__contains__, into)
    if not parts:
        raise NotADumpError("no dump.json in it", where=str(path), fix="name the folder that holds step*/rank*/")
    told: set[int] = set()
    for part in parts:
        with_facts = part.rank not in told
        told.add(part.rank)
        _Reader(part, into, with_facts=with_facts).read()


@dataclass(slots=True)
class _Reader:
    """Reads one file of one rank and step."""

    part: Part
    into: Recording
    with_facts: bool
    head: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, Source] = field(default_factory=dict)
    attributes: Attributes = field(default_factory=Attributes)
    losses: dict[tuple[str, int], Reading] = field(default_factory=dict)  # single numbers that APIs gave, by name
    found_losses: list[Reading] = field(default_factory=list)
    bad_grads: set[str] = field(default_factory=set)
    params: set[str] = field(default_factory=set)
    n_grads: dict[tuple[str, str], int] = field(default_factory=dict)
    n_unknown: int = 0
    n_named: int = 0  # files of values that are named
    n_missing: int = 0  # of these
    step: Step = field(init=False)

    def read(self) -> None:
        """Read all of the file into the recording."""
        into, part = self.into, self.part
        folder = part.path.parent
        parents = dict(_parents(folder / "construct.json", into))
        self.lines = dict(_lines(folder / "stack.json", into))
        known = (parse(name) for name in (*parents, *(p for p in parents.values() if p)))
        modules = {name.path for name in known if name is not None and name.kind == "module"}
        self.step = Step(parents, Sites(modules), has_modules=True)
        into.begin(part.rank, part.step)
        for text, entry in entries(part.path, "data", into.problem):
            if not text and not self.head:
                self._begin(entry, has_modules=bool(modules))
                continue
            name = parse(text)
            if name is None or not isinstance(entry, (dict, list)):
                self.n_unknown += name is None
                continue
            self._take(text, name, entry)
        self._end(modules)

    def _begin(self, head: dict[str, Any], *, has_modules: bool) -> None:
        self.head = {"task": "", "level": "", "framework": "", **head}
        level, task, framework = (str(self.head[key])[:40] for key in ("level", "task", "framework"))
        self.step.has_modules = has_modules or level != "L1"
        into = self.into
        into.set_version(" ".join(word for word in (framework, level, task) if word))
        for note in OF_STATISTICS:
            into.note(note)
        if level == "L0":
            into.note("level L0: no APIs, no root module and no code outside modules were recorded, nor the loss")
        if level == "L1" and not has_modules:
            into.note("level L1: no modules were recorded: each API is a site, and calls are counted per API")
            self.step.last_backward = last_of(self.part.path, ".backward")
        if level in ("L1", "mix"):
            into.note(
                "APIs that the tool's default filter leaves out (casts, views, cat, stack, clamp) are not recorded"
            )

    def _end(self, modules: set[str]) -> None:
        into, part = self.into, self.part
        if self.n_unknown:
            into.problem(f"{part.path.name} of step {part.step}: {self.n_unknown:,} entries with names of another kind")
        if self.n_missing:
            into.problem(f"step {part.step}: {self.n_missing:,} of {self.n_named:,} files of values are not there")
        if not self.head and not self.step.n_entries:
            into.problem(f"{part.path}: there is no data in it")
        if str(self.head.get("task")) == "structure":
            into.note("task structure: names and calls only, there are no values")
            into.is_of_names = True
        if self.with_facts:
            for name in {*self.step.parents, *(p for p in self.step.parents.values() if p)}:
                known = parse(name)
                if known is not None and known.kind == "module":
                    self.attributes.module(self.step.sites.of(known.path), known.module)
            into.facts(part.rank, self.attributes.facts())
        for reading in self.found_losses:
            into.add(reading)
        values = [r.summary.sum for r in self.found_losses if not r.summary.n_nonfinite]
        bad = [r for r in self.found_losses if r.summary.n_nonfinite]
        loss = value_of(bad[0].summary) if bad else sum(values) / len(values) if values else None
        into.end(
            StepRecord(
                step=part.step, n_microbatches=self.step.microbatch + 1, loss=loss, n_bad_grads=len(self.bad_grads)
            )
        )

    def _take(self, text: str, name: Name, entry: Any) -> None:
        if name.kind == "debug":
            self._debug(name, entry)
        elif not isinstance(entry, dict):
            self.n_unknown += 1
        elif name.direction == "parameters_grad":
            self._gradients(text, name, entry)
        elif name.direction == "forward":
            self._forward(text, name, entry)
        else:
            self._backward(text, name, entry)

    def _forward(self, text: str, name: Name, entry: Mapping[str, Any]) -> None:
        outputs = list(_leaves(entry.get("output"), "out"))
        held = entry.get("parameters")
        trained = [leaf for leaf in held.values() if isinstance(leaf, dict)] if isinstance(held, dict) else []
        has_gradient = any(leaf.get("requires_grad") is True for leaf in (*trained, *(leaf for _, leaf in outputs)))
        call = self.step.place(text, name, has_gradient=has_gradient)
        source = self.lines.get(text)
        args = entry.get("input_args", entry.get("input"))
        for port, leaf in (*_leaves(args, "in"), *_leaves(entry.get("input_kwargs"), "in")):
            self._add(text, call, port, call.order_in, leaf, source)
        if name.kind == "module" and isinstance(entry.get("parameters"), dict):
            self._parameters(text, call, entry["parameters"])
        for port, leaf in outputs:
            reading = self._add(text, call, port, call.order_out, leaf, source)
            if reading is not None and name.kind == "api" and reading.shape == () and port == "out[0]":
                self.losses[name.path, name.call] = reading
        if self.with_facts and name.kind == "api" and call.op and not call.recompute:
            self.attributes.call(call.site, name.path.rpartition(".")[2], args, entry.get("input_kwargs"))

    def _backward(self, text: str, name: Name, entry: Mapping[str, Any]) -> None:
        if name.kind == "api" and not self.step.is_in_backward:
            self._loss(name)
        call = self.step.place(text, name, has_gradient=False)
        source = self.lines.get(text) or self.lines.get(f"{text.rpartition('.')[0]}.forward")
        for port, leaf in _leaves(entry.get("input"), "grad_out"):
            self._add(text, call, port, call.order_in, leaf, source)
        for port, leaf in _leaves(entry.get("output"), "grad_in"):
            self._add(text, call, port, call.order_out, leaf, source)

    def _loss(self, name: Name) -> None:
        """Take what backward begins at as the loss; not a product or quotient, which may be the loss times a scale."""
        reading = self.losses.get((name.path, name.call))
        if reading is None or name.path.rpartition(".")[2] in _SCALING:
            return
        if "sum" in reading.lacks.split() and not reading.summary.n_nonfinite:
            return
        self.into.note("the loss is the value that backward began at")
        order = reading.order + 1
        loss = replace(reading, phase="loss", site="loss", port="value", call=0, op="", module="", order=order)
        self.found_losses.append(loss)

    def _parameters(self, text: str, call: Call, parameters: Mapping[str, Any]) -> None:
        for key, value in parameters.items():
            site = f"{call.site}.{key}".lstrip(".")
            if site in self.params:
                continue
            self.params.add(site)
            for _, leaf in _leaves([value], ""):
                of = replace(call, site=site, phase="param", op="", module="", call=0, recompute=False)
                reading = self._add(text, of, "value", call.order_in, leaf, None, values_of=(call.site, key))
                if reading is not None and self.with_facts:
                    trained = leaf.get("requires_grad") is True
                    self.attributes.parameter(
                        call.site, call.module, key, reading.shape, reading.dtype, trained=trained
                    )

    def _gradients(self, text: str, name: Name, entry: Mapping[str, Any]) -> None:
        owner = self.step.sites.of(name.path)
        order = self.step.between()
        for key, value in entry.items():
            site = f"{owner}.{key}".lstrip(".")
            for _, leaf in _leaves(value if isinstance(value, list) else [value], ""):
                number_of = self.n_grads.get((site, "grad"), 0)
                self.n_grads[site, "grad"] = number_of + 1
                call = Call(
                    site=site, phase="grad", op="", module="", call=0, microbatch=min(number_of, self.step.microbatch),
                    recompute=False, order_in=order, order_out=order,
                )  # fmt: skip
                if number_of > self.step.microbatch:
                    call = replace(call, call=number_of - self.step.microbatch)
                reading = self._add(text, call, "grad", order, leaf, None, values_of=(owner, f"{key}.grad"))
                if reading is not None and reading.summary.n_nonfinite:
                    self.bad_grads.add(site)

    def _debug(self, name: Name, entry: Any) -> None:
        is_grad = name.module == "grad"
        order = self.step.between()
        call = Call(
            site=name.path, phase="backward" if is_grad else "forward", op="", module="", call=name.call, microbatch=0,
            recompute=False, order_in=order, order_out=order,
        )  # fmt: skip
        port = "grad_out" if is_grad else "out"
        text = f"{name.path}{'_grad' if is_grad else ''}.{name.call}.debug"
        for where, leaf in _leaves(entry if isinstance(entry, list) else [entry], port):
            self._add(text, call, where, order, leaf, self.lines.get(text))

    def _add(
        self, text: str, call: Call, port: str, order: int, leaf: Mapping[str, Any], source: Source | None,
        values_of: tuple[str, str] | None = None,
    ) -> Reading | None:  # fmt: skip
        shape = shape_of(leaf.get("shape"))
        if shape is None:
            self.into.problem(f"{text[:200]}: a tensor without a shape is left out")
            return None
        dtype = _dtype(leaf.get("dtype"))
        n = math.prod(shape)
        summary, lacks = summary_of(
            n, high=leaf.get("Max"), low=leaf.get("Min"), mean=leaf.get("Mean"), norm=leaf.get("Norm"), dtype=dtype
        )
        tensor = self._values(leaf)
        if tensor is not None and (tensor.shape == shape or tensor.n == n):
            exact = self._exact(tensor)
            if exact is not None:
                summary, lacks = exact, ""
                site, key = values_of or (call.site, f"{port}#{call.call}" if call.call else port)
                if not call.op and not call.recompute:
                    self.into.keep(site, key, call.microbatch, tensor)
        reading = Reading(
            step=self.part.step, microbatch=call.microbatch, phase=call.phase, site=call.site, port=port, order=order,
            call=call.call, dtype=dtype, shape=shape, summary=summary, module=call.module, op=call.op, source=source,
            recompute=call.recompute, digest=self._digest(leaf.get("md5")), lacks=lacks,
        )  # fmt: skip
        self.into.add(reading)
        return reading

    def _digest(self, text: Any) -> int | None:
        if not isinstance(text, str) or not 1 <= len(text) <= 18:
            return None
        try:
            value = int(text, 16)
        except ValueError:
            return None
        is_xor = text.startswith("0x")
        self.into.set_version("", digest="xor" if is_xor else "crc32")
        return value - (1 << 64) if value >= 1 << 63 else value

    def _values(self, leaf: Mapping[str, Any]) -> Tensor | None:
        name = leaf.get("data_name")
        if not isinstance(name, str) or not name or name == "-1":
            return None
        if Path(name).name != name or "\0" in name or name.startswith(".") or len(name) > 255:
            self.into.problem(f"values are left out: {name[:100]!r} is no name of a file")
            return None
        path = self.part.path.parent / VALUES / name
        self.n_named += 1
        if not path.exists():
            self.n_missing += 1
            return None
        try:
            return open_tensor(path)
        except CheckpointError as error:
            self.into.problem(f"values are left out: {name}: {error.what}{f' ({error.why})' if error.why else ''}")
            return None

    def _exact(self, tensor: Tensor) -> Summary | None:
        try:
            return summary_of_values(tensor)
        except CheckpointError as error:
            self.into.problem(f"values are left out: {error.where}: {error.what}")
            return None


_DTYPES = {"float": "float32", "double": "float64", "half": "float16", "long": "int64"}


def _dtype(value: Any) -> str:
    """Return our name of a dtype: float32 for `torch.float32`, `Float32`, `mindspore.float32`."""
    name = value.rpartition(".")[2].strip("'>").lower()[:40] if isinstance(value, str) else ""
    return _DTYPES.get(name, name)


def _leaves(value: Any, port: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the tensors of a nested argument with their ports."""
    stack: list[tuple[str, Any, int]] = [(port, value, 0)]
    n = 0
    while stack and n < _MOST_LEAVES:
        where, here, depth = stack.pop()
        n += 1
        if isinstance(here, list) and depth < _DEEPEST:
            stack += [(f"{where}[{i}]", inner, depth + 1) for i, inner in reversed(list(enumerate(here)))]
        elif isinstance(here, dict) and depth < _DEEPEST:
            if "shape" in here and "dtype" in here:
                yield where, here
            elif "type" not in here:
                stack += [(f"{where}[{key}]", inner, depth + 1) for key, inner in reversed(list(here.items()))]
            elif isinstance(here.get("tensor"), dict):  # of a P2POp
                stack.append((f"{where}[tensor]", here["tensor"], depth + 1))


def _parents(path: Path, into: Recording) -> Iterator[tuple[str, str | None]]:
    """Yield the name of each entry and the name of what called it."""
    for name, value in _beside(path, into):
        if name != OPTIMIZER:
            parent = next((v for v in value if isinstance(v, str)), None) if isinstance(value, list) else value
            yield name, parent if isinstance(parent, str) and parent else None


def _lines(path: Path, into: Recording) -> Iterator[tuple[str, Source]]:
    """Yield the name of each entry and the innermost line of the user's code, of all versions of the file."""
    for key, value in _beside(path, into):
        names, frames = [key], value
        if isinstance(value, list) and len(value) == 2 and all(isinstance(part, list) for part in value):
            names, frames = value
        line = own_line(frame_of(frame) for frame in frames) if isinstance(frames, list) else None
        if line is not None:
            yield from ((name, line) for name in names if isinstance(name, str))


def _beside(path: Path, into: Recording) -> Iterator[tuple[str, Any]]:
    try:
        if path.stat().st_size > _BESIDE_AT_MOST:
            into.problem(f"{path} is left out: it is larger than {_BESIDE_AT_MOST >> 30} GiB")
            return
        yield from entries(path, "", into.problem)
    except FileNotFoundError:
        into.note(f"there is no {path.name}: {_WITHOUT[path.name]}")


_WITHOUT = {"stack.json": "source lines are not known", "construct.json": "what calls an API is not known"}
