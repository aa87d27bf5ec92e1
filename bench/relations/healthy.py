"""Every family as it is: nothing may be found but what breaks a relation by its definition."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import torch

from bench.relations.families import FAMILIES, batch_of
from hypocenter.relations.check import Looked
from hypocenter.testing import RelationBroken, check_relations, sentence

FORMATS = ("float32", "bfloat16", "autocast-bfloat16", "autocast-float16")


def looked_at(name: str, *, is_training: bool = True, numbers: str = "float32", seed: int = 0) -> Looked:
    """One family, its batch, in training or evaluation, in a format."""
    recipe = FAMILIES[name]
    model = recipe.make(recipe.attention[0]).train(is_training)
    batch = batch_of(recipe, seed)
    autocast: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    if numbers == "bfloat16":
        model = model.to(torch.bfloat16)
        batch = {
            key: value.to(torch.bfloat16) if isinstance(value, torch.Tensor) and value.is_floating_point() else value
            for key, value in batch.items()
        }
    elif numbers.startswith("autocast"):
        autocast = torch.autocast("cpu", dtype=getattr(torch, numbers.removeprefix("autocast-")))
    with autocast:
        try:
            return check_relations(model, batch)
        except RelationBroken as broken:
            return broken.looked


def sweep(names: Iterable[str], formats: Iterable[str] = FORMATS) -> int:
    """A line for each; the number of false relations."""
    n_false = n_done = n_failed = most = most_located = 0
    for name in names:
        for numbers in formats:
            for is_training in (True, False):
                try:
                    looked = looked_at(name, is_training=is_training, numbers=numbers)
                except Exception as error:  # the family itself cannot do this format, or this version lacks it
                    n_failed += 1
                    print(f"-    {name:20} {numbers:18} {type(error).__name__}: {str(error)[:90]}", flush=True)
                    continue
                false = [*(each for each in looked.broken if not each.exception), *looked.losses]
                n_false += len(false)
                n_done += 1
                words = [*(sentence(each) for each in looked.broken), *(each.wrong.title for each in looked.losses)]
                if any(", first in " in text for text in (*words, *looked.notes)):
                    most_located = max(most_located, looked.n_forwards)
                else:
                    most = max(most, looked.n_forwards)
                mode = "train" if is_training else "eval"
                held, not_asked = ",".join(looked.held), ",".join(looked.not_asked)
                print(
                    f"{'FALSE' if false else 'ok':5}{name:20} {numbers:18} {mode:6} {looked.n_forwards:3} forwards, "
                    f"held {held}; not asked {not_asked} {looked.notes or ''} {words or ''}",
                    flush=True,
                )
    print(f"\n{n_done} looked at, {n_false} false relations, {n_failed} could not be run")
    print(f"at most {most} forwards; {most_located} where the module of a note or an exception was looked for")
    return n_false
