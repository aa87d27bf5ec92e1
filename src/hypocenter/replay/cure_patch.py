"""The cure as a change of the user's own source: a diff to read, and what it does beyond the modules that need it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hypocenter.diagnose.evidence import Cure
from hypocenter.diagnose.numbers import counted
from hypocenter.diagnose.patch import Patch, propose
from hypocenter.replay.islands_search import Module
from hypocenter.replay.remedies.sources import forward_source


def patch_of(cure: Cure, module: Module, roots: Sequence[torch.nn.Module]) -> Patch:
    """The statement when it alone suffices, else the forward of each target's class.

    Args:
        cure: with targets and, where they suffice, lines.
        module: module path -> module.
        roots: the models.
    """
    if cure.lines:
        line = cure.lines[0]
        found = propose(line.file, (line.line,), "statement", targets=cure.targets)
        return Patch(diff=found.diff, words=found.words)
    diffs: dict[str, None] = {}  # each once: several targets may be of one class
    words: dict[str, None] = {}
    for path in cure.targets:
        target = module(path)
        source = forward_source(target) if target is not None else None
        if target is None or source is None:
            continue
        found = propose(source.file, (source.line,), "forward", targets=cure.targets, cast_back=cure.cast_back)
        if found.diff:
            diffs[found.diff] = None
            words |= dict.fromkeys(_others(type(target), cure.targets, roots))
        elif found.words:
            words[found.words] = None
    return Patch(diff="".join(diffs), words="; ".join(words))


def _others(kind: type[torch.nn.Module], targets: Sequence[str], roots: Sequence[torch.nn.Module]) -> list[str]:
    n_alike = len({id(m) for root in roots for m in root.modules() if type(m) is kind})
    if n_alike <= len(targets):
        return []
    return [
        f"the diff changes all {counted(n_alike, 'module')} of class {kind.__name__}, the line above only the named"
    ]
