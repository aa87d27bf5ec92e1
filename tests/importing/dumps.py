"""Dumps made by hand, samples that tools wrote, and their import, for tests."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from hypocenter.importing.catalogue import import_dump
from hypocenter.nouns import Reading
from hypocenter.record.reader import RecordedRun, open_run

SAMPLES = Path(__file__).parent / "samples"
MSPROBE = SAMPLES / "msprobe"
PTDBG = SAMPLES / "ptdbg_ascend"


def imported(path: Path, out: Path, kind: str | None = None) -> RecordedRun:
    """The run that is made of a dump."""
    return open_run(import_dump(path, str(out), kind=kind).directory)


def tensor(high: float, low: float, *, shape: tuple[int, ...] = (2, 3), dtype: str = "float32", **more: Any) -> Any:
    """A leaf as msprobe writes it."""
    mean = more.pop("mean", (high + low) / 2)
    norm = more.pop("norm", max(abs(high), abs(low)))
    return {"type": "torch.Tensor", "dtype": f"torch.{dtype}", "shape": list(shape), "Max": high, "Min": low,
            "Mean": mean, "Norm": norm, "requires_grad": True, **more}  # fmt: skip


def forward(ins: list[Any], outs: list[Any], **kwargs: Any) -> dict[str, Any]:
    """A forward entry."""
    return {"input_args": ins, "input_kwargs": kwargs, "output": outs}


def write(root: Path, data: dict[str, Any], *, parents: dict[str, Any] | None = None, level: str = "mix", step: int = 0,
          rank: str = "rank0", task: str = "statistics") -> Path:  # fmt: skip
    """A dump of one rank and step, written as msprobe writes it; its root."""
    folder = root / f"step{step}" / rank
    folder.mkdir(parents=True, exist_ok=True)
    head = {"task": task, "level": level, "framework": "pytorch", "dump_data_dir": None, "data": data}
    (folder / "dump.json").write_text(json.dumps(head, indent=1), encoding="utf-8")
    (folder / "construct.json").write_text(json.dumps(parents or {}, indent=1), encoding="utf-8")
    (folder / "stack.json").write_text("{}", encoding="utf-8")
    return root


def rows(run: RecordedRun, **fields: Any) -> list[Reading]:
    """Readings with these fields, in the order of execution."""
    found = [r for r in run.readings() if all(getattr(r, name) == value for name, value in fields.items())]
    return sorted(found, key=lambda r: r.order)


def row(run: RecordedRun, **fields: Any) -> Reading:
    """The only such reading."""
    (found,) = rows(run, **fields)
    return found


Numbers = list[tuple[tuple[int, ...], str, str]]


def numbers_of(run: RecordedRun) -> Numbers:
    """Shape, maximum and minimum of every reading that stands for a tensor of the dump."""
    readings = [r for r in run.readings() if not (r.phase == "loss" and r.port == "value")]
    return sorted((r.shape, _text(r.summary.max), _text(r.summary.min)) for r in readings)


def told(path: Path) -> Numbers:
    """What the tool's own files say of every tensor, read in the plainest way."""
    return sorted((tuple(leaf["shape"]), _text(leaf.get("Max")), _text(leaf.get("Min"))) for leaf in leaves(path))


def sums_of(run: RecordedRun) -> list[tuple[str, ...]]:
    """Extremes, mean and norm of every tensor whose sums were taken from the tool's."""
    rough = [r.summary for r in run.readings() if "rough" in r.lacks.split() and r.phase != "loss"]
    return sorted(
        (_text(s.max), _text(s.min), _short(s.sum / s.n), _short(math.sqrt(s.sumsq)) if s.sumsq else "-") for s in rough
    )


def sums_told(path: Path) -> list[tuple[str, ...]]:
    """The same of the tool's own files, of tensors without a file of values."""
    held = {file.name for file in path.rglob("*.pt")}
    bare = [leaf for leaf in leaves(path) if leaf.get("data_name") not in held]
    rows = [(leaf.get("Max"), leaf.get("Min"), leaf.get("Mean"), leaf.get("Norm")) for leaf in bare]
    usable = [r for r in rows if None not in r and all(map(math.isfinite, r[:3])) and r[0] != r[1]]
    return sorted(
        (_text(high), _text(low), _short(mean), _short(norm) if math.isfinite(norm) else "-")
        for high, low, mean, norm in usable
    )


def leaves(path: Path) -> list[dict[str, Any]]:
    """All tensors of a dump, as its files have them; parameters of a module that is called again once."""
    found: list[dict[str, Any]] = []

    def visit(value: Any) -> None:
        if isinstance(value, dict) and "shape" in value:
            found.append(value)
        elif isinstance(value, (dict, list)):
            for inner in value.values() if isinstance(value, dict) else value:
                visit(inner)

    for file in sorted(path.rglob("d[ue]*.json")):  # dump.json, debug.json
        data = json.loads(file.read_text())["data"]
        seen: set[str] = set()
        for name, entry in data.items():
            if isinstance(entry, dict) and "parameters" in entry:
                module = name.rsplit(".", 2)[0]
                entry = {k: v for k, v in entry.items() if k != "parameters" or module not in seen}
                seen.add(module)
            visit(entry)
    return found


def _short(value: float) -> str:
    return f"{value:.6g}"


def _text(value: Any) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{float(value):.9g}"
