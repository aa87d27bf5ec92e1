"""A replay of MindSpore under the op trace, with names for what was there before any op."""

from __future__ import annotations

from typing import Any

from hypocenter.diagnose.origin import Blame, blame
from hypocenter.replay.mindspore.engine import Replayed, Replayer
from hypocenter.replay.mindspore.host import address, is_finite
from hypocenter.replay.mindspore.places import Places
from hypocenter.replay.mindspore.trace import OpTracer
from hypocenter.tap.mindspore.names import NameMap
from hypocenter.tap.mindspore.tape import GradCall


def traced(replayer: Replayer, names: NameMap, call: GradCall, **how: Any) -> tuple[OpTracer, Replayed]:
    """Run forward, loss and backward of a micro-batch with a tracer; `how` as in `Replayer.run`."""
    weights = {id(weight) for weight in call.weights}
    known: dict[int, tuple[str, str]] = {}
    for name, parameter in names.parameters():
        is_buffer = id(parameter) not in weights and not parameter.requires_grad
        known[address(parameter)] = ("buffer" if is_buffer else "param", name)
    for weight in call.weights:
        known.setdefault(address(weight), ("param", names.label(weight)))
    for name, tensor in replayer.named_inputs(call):
        known.setdefault(address(tensor), ("batch", name))
    known.pop(0, None)

    def leaf(tensor: Any) -> tuple[str, str]:
        return known.get(address(tensor), ("external", ""))

    tracer = OpTracer(Places(names), leaf)
    return tracer, replayer.run(call, tracer=tracer, **how)


def blamed(tracer: OpTracer, call: GradCall, replayed: Replayed) -> Blame | None:
    """Return where loss or gradients stopped being finite; None when they are, or when the trace lost the way."""
    values = [v for v in replayed.values if not is_finite(v)]
    bad = [(g, w) for w, g in zip(call.weights, replayed.grads, strict=False) if not is_finite(g)]
    targets = [tracer.edge_to(v) for v in values] or [tracer.edge_to_gradient(*b) for b in bad]
    return blame(tracer.trace(), targets)  # asking for an edge may have added to the trace
