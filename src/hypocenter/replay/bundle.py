"""A bundle: the blamed op with its captured inputs, as safetensors and JSON, and a script that needs nothing of ours.

evidence.json     what was found out
op.json           the op and its arguments; tensors by name
inputs.safetensors
repro.py          runs the op and says what comes out; needs torch and safetensors only
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch

from hypocenter.diagnose.evidence import Evidence
from hypocenter.errors import BundleError
from hypocenter.tap.dispatch import declared
from hypocenter.tap.nodes import Node

OP_FILE, TENSOR_FILE, SCRIPT_FILE = "op.json", "inputs.safetensors", "repro.py"
FORMAT = 1
# 1: first version
NAMESPACES = ("aten", "prims")  # ops of others may do anything: a bundle from a stranger must not run them

_SCRIPT = '''"""{title}

Recorded by Hypocenter {where}. Needs torch and safetensors only: python {script}
"""
import json, pathlib, sys
import torch
from safetensors.torch import load_file

HERE = pathlib.Path(__file__).resolve().parent
OP = json.loads((HERE / "{op_file}").read_text())
TENSORS = load_file(str(HERE / "{tensor_file}")) if (HERE / "{tensor_file}").exists() else {{}}


def value(x, wide):
    if isinstance(x, list):
        return [value(item, wide) for item in x]
    if not isinstance(x, dict):
        return x
    kind, what = next(iter(x.items()))
    if kind == "tensor":
        t = TENSORS[what]
        return t.double() if wide and t.is_floating_point() else t.clone()
    if kind == "dtype":
        dtype = getattr(torch, what)
        return torch.float64 if wide and dtype.is_floating_point else dtype
    if kind == "float":
        return float(what)
    return torch.device(what) if kind == "device" else getattr(torch, what)  # layout, memory_format


def run(wide):
    namespace, name, overload = OP["op"].split(".")
    if namespace not in {namespaces!r}:
        sys.exit("this bundle asks for an op outside aten: not run")
    op = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    out = op(*value(OP["args"], wide), **{{k: value(v, wide) for k, v in OP["kwargs"].items()}})
    out = out if isinstance(out, (tuple, list)) else (out,)
    return next(t for t in out if isinstance(t, torch.Tensor) and t.is_floating_point())


def describe(label, t):
    finite = t[torch.isfinite(t)]
    largest = float(finite.abs().max()) if finite.numel() else float("nan")
    counts = f"NaN x{{int(t.isnan().sum())}}  +inf x{{int(t.isposinf().sum())}}  -inf x{{int(t.isneginf().sum())}}"
    print(f"{{label:>9}}: {{tuple(t.shape)}} {{str(t.dtype)[6:]}}  {{counts}}  largest finite |x| {{largest:.6g}}")


print(OP["op"])
for name, tensor in TENSORS.items():
    if tensor.is_floating_point():
        describe(name, tensor)
again = run(wide=False)
describe("output", again)
try:
    describe("float64", run(wide=True))
except (RuntimeError, NotImplementedError) as error:
    print("  float64: cannot run:", str(error).splitlines()[0])
bad = not bool(torch.isfinite(again).all())
print("the failure shows again" if bad else "the failure does not show")
sys.exit(0 if bad else 1)
'''


def write_bundle(
    folder: Path, node: Node, evidence: Evidence, budget_bytes: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Write op, inputs and script of a bundle. Return (file names, notes on what was left out)."""
    if node.func is None or node.args is None or node.why_not_again:
        return (), (f"{node.why_not_again or 'the inputs of the op were not kept (too many before it)'}: no bundle",)
    if node.func.namespace not in NAMESPACES:
        return (), (f"the op belongs to {node.func.namespace}, not to torch: no bundle",)
    from safetensors.torch import save_file  # here: a healthy training process never needs it

    tensors: dict[str, torch.Tensor] = {}
    names = [argument.name for argument in declared(node.func)]

    def encode(value: Any, name: str) -> Any:
        if isinstance(value, torch.Tensor):
            tensors[name] = value.detach().to("cpu").contiguous().clone()
            return {"tensor": name}
        if isinstance(value, (list, tuple)):
            return [encode(item, f"{name}_{i}") for i, item in enumerate(value)]
        if isinstance(value, float) and not math.isfinite(value):
            return {"float": str(value)}
        for kind, types in (("dtype", torch.dtype), ("layout", torch.layout), ("memory_format", torch.memory_format)):
            if isinstance(value, types):
                return {kind: str(value).removeprefix("torch.")}
        if isinstance(value, torch.device):
            return {"device": "cpu"}
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        raise BundleError(
            f"argument {name!r} of {node.traced.op} cannot be stored", why=f"it is a {type(value).__name__}"
        )

    try:
        op = {
            "format": FORMAT,
            "op": node.traced.op,
            "args": [encode(v, names[i] if i < len(names) else f"arg{i}") for i, v in enumerate(node.args)],
            "kwargs": {k: encode(v, k) for k, v in node.kwargs.items()},
        }
    except BundleError as error:
        return (), (str(error),)
    size = sum(t.numel() * t.element_size() for t in tensors.values())
    if size > budget_bytes:
        return (), (f"the op's inputs are {size >> 20} MiB, more than bundle_mb: no bundle",)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, str(folder / TENSOR_FILE))
    (folder / OP_FILE).write_text(json.dumps(op, indent=1), encoding="utf-8")
    site = evidence.origin.site if evidence.origin else ""
    title = f"{node.traced.op} in {site or 'the model'} at step {evidence.step}"
    (folder / SCRIPT_FILE).write_text(script(title, f"as {evidence.id}"), encoding="utf-8")
    return (OP_FILE, TENSOR_FILE, SCRIPT_FILE), ()


def script(title: str, where: str) -> str:
    """Return the standalone script: a fixed text, into which only the two lines of its docstring are put."""
    return _SCRIPT.format(
        title=title, where=where, script=SCRIPT_FILE, op_file=OP_FILE, tensor_file=TENSOR_FILE, namespaces=NAMESPACES
    )
