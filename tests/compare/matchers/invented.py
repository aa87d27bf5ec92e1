"""Recordings of invented networks, and what a refactoring makes of them; `truth` says which spot is which."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass, replace

from hypocenter.compare.comparison import Pair, SiteCard, Spot

PARTS = (
    ("norm_a", "RMSNorm", (32,), 32),
    ("mix", "Attention", None, 32),
    ("mix.q", "Linear", (32, 32), 32),
    ("mix.k", "Linear", (16, 32), 16),
    ("mix.out", "Linear", (32, 32), 32),
    ("norm_b", "RMSNorm", (32,), 32),
    ("feed", "FeedForward", None, 32),
    ("feed.wide", "Linear", (64, 32), 64),
    ("feed.act", "SiLU", None, 64),
    ("feed.narrow", "Linear", (32, 64), 32),
)
"""Of a layer: path, class, shape of the weight, width of the output."""


@dataclass(frozen=True, kw_only=True)
class Module:
    """One module, its identity, and what is recorded of it."""

    truth: int
    path: str
    kind: str
    weight: tuple[int, ...] | None
    width: int
    norms: tuple[float, ...]  # of in, out, grad_out, weight, weight's gradient; then what makes their largest elements


def network(n_layers: int, numbers: random.Random) -> list[Module]:
    """The modules of a network in order of execution."""
    plan = [("embed", "Embedding", (100, 32), 32)]
    for i in range(n_layers):
        plan.append((f"stack.{i}", "Block", None, 32))
        plan += [(f"stack.{i}.{path}", kind, weight, width) for path, kind, weight, width in PARTS]
    plan += [("final", "RMSNorm", (32,), 32), ("readout", "Linear", (100, 32), 100)]
    return [
        Module(truth=i, path=path, kind=kind, weight=weight, width=width, norms=norms(numbers))
        for i, (path, kind, weight, width) in enumerate(plan)
    ]


def norms(numbers: random.Random) -> tuple[float, ...]:
    return tuple(numbers.uniform(0.5, 2.0) for _ in range(10))


def cards(modules: Iterable[Module]) -> list[SiteCard]:
    """What would be recorded of them."""
    found: list[SiteCard] = []
    for module in modules:
        n_in = module.weight[-1] if module.weight and len(module.weight) == 2 and module.kind == "Linear" else 32
        rows = [
            ("forward", module.path, "in[0]", (2, 10, n_in)),
            ("forward", module.path, "out[0]", (2, 10, module.width)),
        ]
        rows.append(("backward", module.path, "grad_out[0]", (2, 10, module.width)))
        if module.weight:
            rows.append(("param", f"{module.path}.weight", "value", module.weight))
            rows.append(("grad", f"{module.path}.weight", "grad", module.weight))
        for (phase, site, port, shape), norm, peak in zip(rows, module.norms, module.norms[5:], strict=False):
            n = math.prod(shape)
            spot = Spot(phase=phase, site=site, port=port)
            card = SiteCard(
                spot=spot, order=len(found), module=module.kind, dtype="float32", shape=shape, n=n, sumsq=norm * n,
                absmax=4.0 + peak,
            )  # fmt: skip
            found.append(card)
    return found


def truths(modules: Iterable[Module]) -> dict[Spot, tuple[int, str, str]]:
    """Which spot is which, whatever it is called."""
    return {
        card.spot: (module.truth, card.spot.phase, card.spot.port) for module in modules for card in cards([module])
    }


def renamed(modules: list[Module], which: set[int], numbers: random.Random) -> list[Module]:
    """Give some modules, and with them all below, other names."""
    paths = {m.path: f"{m.path.rpartition('.')[0]}.{word(numbers)}".lstrip(".") for m in modules if m.truth in which}

    def path(old: str) -> str:
        parts = old.split(".")
        for n in range(len(parts), 0, -1):
            head = ".".join(parts[:n])
            if head in paths:
                parts[n - 1] = paths[head].rpartition(".")[2]
        return ".".join(parts)

    return [replace(module, path=path(module.path)) for module in modules]


def word(numbers: random.Random) -> str:
    return "x" + "".join(numbers.choice("abcdefghijkmnopqrstuvw") for _ in range(9))


def one_to_one(pairs: Iterable[Pair]) -> bool:
    """No spot in two pairs, on neither side, and never several against several."""
    ours = [spot for pair in pairs for spot in pair.baseline]
    theirs = [spot for pair in pairs for spot in pair.candidate]
    sound = all(min(len(pair.baseline), len(pair.candidate)) == 1 for pair in pairs)
    return sound and len(ours) == len(set(ours)) and len(theirs) == len(set(theirs))
