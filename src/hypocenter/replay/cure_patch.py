"""The cure as a change of the user's own source: a diff to read, and what it does beyond the modules that need it."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch

from hypocenter.diagnose.evidence import Cure
from hypocenter.diagnose.patch import Patch, api, propose
from hypocenter.replay.islands_search import Module
from hypocenter.replay.remedies.sources import forward_source
from hypocenter.tap.names import unwrap, walk

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
HALF = (torch.float16, torch.bfloat16)


def patch_of(cure: Cure, module: Module, roots: Sequence[torch.nn.Module]) -> Patch:
    """The statement when it alone suffices, else the forward of each target's class.

    Args:
        cure: with targets and, where they suffice, lines.
        module: module path -> module.
        roots: the models.
    """
    half = any(parameter.dtype in HALF for root in roots for parameter in root.parameters())
    if cure.lines:
        line = cure.lines[0]
        # results stay float32, as they did in the replay that verified the line
        return propose(line.file, (line.line,), "statement", targets=cure.targets, cast_back=False, half=half)
    found: list[Patch] = []
    for path in cure.targets:
        target = module(path)
        source = forward_source(target) if target is not None else None
        if source is not None:
            cast_back, place = cure.cast_back, (source.line,)
            found.append(propose(source.file, place, "forward", targets=cure.targets, cast_back=cast_back, half=half))
    diffs = dict.fromkeys(patch.diff for patch in found)  # each once: several targets may be of one class
    words = dict.fromkeys(patch.words for patch in found if patch.words)
    return Patch(diff="".join(diffs), words="; ".join(words))


def api_lines(targets: Sequence[str], *, cast_back: bool, module: Module, roots: Sequence[torch.nn.Module]) -> str:
    """The cure as Python: one `hypocenter.island` per model, each with names as that model has them.

    The only model is called `model`, others (a loss that is a module) by their class.
    """
    lines: list[str] = []
    left = list(targets)
    for root in roots:
        names = {id(unwrap(m)): name for name, m in walk(root)}
        mine = [path for path in left if (m := module(path)) is not None and id(unwrap(m)) in names]
        if mine:
            inside = [names[id(unwrap(m))] for path in mine if (m := module(path)) is not None]
            variable = "model" if inside == mine else _CAMEL.sub("_", type(unwrap(root)).__name__).lower()
            lines.append(api(inside, cast_back=cast_back).replace("island(model,", f"island({variable},", 1))
            left = [path for path in left if path not in mine]
    return "\n".join(lines)
