"""The cure as a change of the user's own source: a diff to read, and what it does beyond the modules that need it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass

import torch

from hypocenter.diagnose.evidence import Cure
from hypocenter.diagnose.patch import Patch, api, propose
from hypocenter.replay.cure.islands import Module
from hypocenter.replay.cure.patched import CannotTry, patched
from hypocenter.replay.cure.rehearsal import Around, Rehearsal
from hypocenter.replay.remedies.sources import forward_source
from hypocenter.tap.names import unwrap, walk

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A diff that was replayed, or could not be (verified False), or the words why there is none."""

    diff: str = ""
    words: str = ""
    verified: bool = False


def change_of(cure: Cure, module: Module, rehearsal: Rehearsal, roots: Sequence[torch.nn.Module]) -> Change:
    """The statement in float32 when it alone suffices, else the forward of each target's class.

    A diff with which the replayed step is not finite is never shown.

    Args:
        cure: with targets and, where they suffice, lines.
        module: module path -> module.
        rehearsal: of the step.
        roots: the models.
    """
    half = any(parameter.dtype in HALF for root in roots for parameter in root.parameters())
    untried, failed = Change(), ""
    for made in (_statement(cure, half), _forwards(cure, module, half)):
        if not any(patch.diff for _, patch in made):
            untried = untried if untried.words else Change(words=_words(made, cure.targets))
            continue
        diff = "".join(dict.fromkeys(patch.diff for _, patch in made))  # each once: targets may be of one class
        if rehearsal.holds(_around(roots, made)):
            return Change(diff=diff, words=_words(made, cure.targets), verified=True)
        if rehearsal.error.startswith(CannotTry.__name__) or half:  # half: parameters have to be made float32 beside
            untried = untried if untried.diff else Change(diff=diff, words=_words(made, cure.targets))
        else:
            failed = rehearsal.error or "loss or gradients were not finite"
    if untried.diff or not failed:
        return untried
    return Change(words=f"no diff: the one that was made did not pass the replay ({failed})")


Made = Sequence[tuple[str, Patch]]
"""Files, and what is to be changed in them."""


def _statement(cure: Cure, half: bool) -> Made:
    if not cure.lines:
        return ()
    line = cure.lines[0]
    # results stay float32, as they did in the replay that verified the line
    change = propose(line.file, (line.line,), "statement", targets=cure.targets, cast_back=False, half=half)
    return ((line.file, change),)


def _forwards(cure: Cure, module: Module, half: bool) -> Made:
    made: list[tuple[str, Patch]] = []
    for path in cure.targets:
        target = module(path)
        source = forward_source(target) if target is not None else None
        if source is not None:
            cast_back, place = cure.cast_back, (source.line,)
            change = propose(source.file, place, "forward", targets=cure.targets, cast_back=cast_back, half=half)
            made.append((source.file, change))
    return made


def _words(made: Made, targets: Sequence[str]) -> str:
    """What is to be said beside the diffs. The line of Python that they name is the cure's own, which stands above."""
    said = (patch.words.replace(api(targets), "the line above") for _, patch in made if patch.words)
    return "; ".join(dict.fromkeys(said))


def _around(roots: Sequence[torch.nn.Module], made: Made) -> Around:
    @contextlib.contextmanager
    def around() -> Generator[None, None, None]:
        with contextlib.ExitStack() as stack:
            for file, diff in dict.fromkeys((file, patch.diff) for file, patch in made if patch.diff):
                stack.enter_context(patched(roots, file, diff))
            yield

    return around


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
