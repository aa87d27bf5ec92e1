"""Leaks by seed, each put into one module of a model that is trained a step under `--relations`."""

from __future__ import annotations

import random
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import hypocenter
from bench.relations.families import FAMILIES, batch_of
from bench.relations.leaks import LEAKS
from bench.relations.own import OWN
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.nouns import Finding
from hypocenter.record.reader import open_run

MODELS = (
    "gpt2",
    "llama",
    "mixtral",
    "opt",
    "mamba",
    "bert",
    "bert-classifier",
    "t5",
    "bart",
    "vit",
    "resnet",
    "swin",
    *OWN,
)
CODES = {"samples": "HC241", "future": "HC242", "padding": "HC243", "label": "HC244"}


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A leak in a module of a model."""

    model: str
    leak: str
    module: str
    seed: int


def draw(n: int, seed: int) -> Iterator[Mutant]:
    """As many of each model as come out even."""
    chosen = random.Random(seed)
    for i in range(n):
        name = MODELS[i % len(MODELS)]
        model, _ = made(name, i)
        fitting = [key for key, leak in LEAKS.items() if not leak.models or name in leak.models]
        while True:
            leak = chosen.choice(fitting)
            places = [path for path, module in model.named_modules() if _takes(leak, module)]
            if places:
                break
            fitting.remove(leak)
        yield Mutant(model=name, leak=leak, module=chosen.choice(places), seed=seed * 1000 + i)


def _takes(leak: str, module: nn.Module) -> bool:
    words = LEAKS[leak].takes
    is_plain = "Cross" not in type(module).__name__ and not isinstance(module, nn.ModuleList)
    return is_plain and any(word in type(module).__name__ for word in words)


def made(name: str, seed: int) -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    """A model, and a forward with loss on its batch."""
    torch.manual_seed(seed)
    if name in OWN:
        make, batch, loss = OWN[name]
        model, (inputs, labels) = make(), batch(torch.Generator().manual_seed(seed))
        return model, lambda model: loss(model(*inputs), labels)
    recipe = FAMILIES[name]
    model, given = recipe.make("eager" if "eager" in recipe.attention else recipe.attention[0]), batch_of(recipe, seed)
    return model, lambda model: model(**given).loss


def trained(name: str, seed: int, change: Callable[[nn.Module], Any] = lambda _: None) -> list[Finding]:
    """Two steps; what is found of relations."""
    model, forward = made(name, seed)
    change(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    folder = tempfile.mkdtemp(prefix="relations-")
    with hypocenter.watch(model, optimizer, out=f"{folder}/run", relations="1", audit="never", replay=False):
        for _ in range(2):
            forward(model).backward()
            optimizer.step()
            optimizer.zero_grad()
    return [f for f in diagnose(open_run(f"{folder}/run")).findings if f.code in CODES.values()]


def is_right(mutant: Mutant, finding: Finding) -> bool:
    """The module, or what is called in it or by it next."""
    said, planted = finding.site or "", mutant.module
    if LEAKS[mutant.leak].relation == "label" and LEAKS[mutant.leak].takes == ("",):
        return said == "" or "embed" in said or "wte" in said or "shared" in said or "decoder" in said
    return said == planted or planted.rpartition(".")[0] == said or said.rpartition(".")[0] == planted


def run(n: int, seed: int, only: list[str]) -> int:
    """A line for each mutant, and a table."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for mutant in draw(n, seed):
        if only and mutant.model not in only and mutant.leak not in only:
            continue
        leak = LEAKS[mutant.leak]
        try:
            found = trained(
                mutant.model,
                mutant.seed,
                lambda m, at=mutant, leak=leak: leak.apply(m, at.module, m.get_submodule(at.module)),
            )
        except Exception as error:
            why = f"{type(error).__name__}: {str(error)[:80]}"
            print(f"--- {mutant.leak:28} {mutant.model:16} {mutant.module:44} cannot be run: {why}", flush=True)
            continue
        codes = {CODES[leak.relation]}
        if mutant.model in ("t5", "bart") and "decoder" in mutant.module:
            codes.add(CODES["label"])  # its later tokens are the labels
        of_it = [f for f in found if f.code in codes and f.severity != "note"]
        right = [f for f in of_it if is_right(mutant, f)]
        other = [f for f in found if f.severity != "note"]
        words = "; ".join(f"{f.code} {f.site} {f.severity}" for f in found) or "nothing"
        marks = ("f" if of_it or other else "-") + ("r" if of_it else "-") + ("m" if right else "-")
        print(f"{marks} {mutant.leak:28} {mutant.model:16} {mutant.module:44} -> {words}", flush=True)
        for key in (mutant.leak, "all"):
            for i, is_so in enumerate((True, of_it or other, of_it, right)):
                counts[key][i] += bool(is_so)
    print("\n| leak | mutants | found | as that relation | module right |\n| --- | --- | --- | --- | --- |")
    for key in sorted(counts, key=lambda k: (k == "all", k)):
        print(f"| {key} | " + " | ".join(map(str, counts[key])) + " |")
    return 0


def healthy() -> int:
    """The models as they are."""
    for name in MODELS:
        print(name, [(f.code, f.severity, f.site, f.why) for f in trained(name, 0)], flush=True)
    return 0
