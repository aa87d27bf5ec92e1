"""For unit tests of a model: `check_relations(model, batch)`, also as a fixture of pytest of this name.

The fixture comes with `pytest -p hypocenter.testing`, or `pytest_plugins = ["hypocenter.testing"]` in a conftest.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hypocenter.errors import HypocenterError
from hypocenter.relations.check import Broken, Looked, look
from hypocenter.relations.relation import RELATIONS, asked_in_runs
from hypocenter.relations.subject import Subject
from hypocenter.replay.engine import Replayer
from hypocenter.tap.names import NameMap
from hypocenter.tap.state import capture_ambient, capture_rng, restore_rng
from hypocenter.tap.tape import Event, Tape, versions_of
from hypocenter.tap.tree import tensors


class RelationBroken(AssertionError):
    """Something that must not matter does; `looked` has all that was found."""

    def __init__(self, looked: Looked) -> None:
        of_losses = [f"{each.wrong.title}: {each.wrong.why}" for each in looked.losses if not each.wrong.is_note]
        super().__init__("\n".join([*(sentence(each) for each in looked.broken if not each.exception), *of_losses]))
        self.looked = looked


def check_relations(
    model: nn.Module,
    batch: Mapping[str, Any] | tuple[Any, ...] | Tensor,
    loss: Callable[..., Tensor] | None = None,
    *,
    labels: Any = (),
    only: tuple[str, ...] = (),
) -> Looked:
    """Change what must not matter in a batch, and see whether the model notices.

    The model is called as it is, in training or evaluation mode, and left as it was: parameters, buffers, random
    numbers and gradients. The first dimension of the batch is that of samples.

    Args:
        model: to be tested.
        batch: keyword arguments as a mapping, arguments as a tuple, or the only argument.
        loss: gives the loss of (output, *labels). None: the output's attribute or key `loss`, its first scalar.
        labels: what `loss` gets beside the output: a tensor, or a tuple of what it takes.
        only: names of relations; empty: all.

    Returns:
        What held, what was not asked and why, and exceptions by definition.

    Raises:
        RelationBroken: an AssertionError that names the first module in which it shows.
    """
    tape, names = Tape(1 << 60), NameMap()
    names.add_root(model)
    rng = capture_rng()
    try:
        looked = look(_subject(model, batch, loss, labels, tape, names), _chosen(only), with_losses=not only)
    finally:
        restore_rng(rng)
        names.close()
    if any(not each.wrong.is_note for each in looked.losses) or any(not each.exception for each in looked.broken):
        raise RelationBroken(looked)
    return looked


def _chosen(only: tuple[str, ...]) -> Any:
    known = RELATIONS.entries()
    unknown = [name for name in only if name not in known]
    if unknown:
        raise HypocenterError(f"there is no relation {unknown[0]!r}", fix="they are " + ", ".join(known))
    return [each for each in RELATIONS.in_order() if each.name in only] if only else asked_in_runs()


def _subject(
    model: nn.Module, batch: Any, loss: Callable[..., Tensor] | None, labels: Any, tape: Tape, names: NameMap
) -> Subject:
    args: tuple[Any, ...] = batch if isinstance(batch, tuple) else () if isinstance(batch, Mapping) else (batch,)
    kwargs: dict[str, Any] = dict(batch) if isinstance(batch, Mapping) else {}
    parameters = list(model.parameters())
    rng, ambient = capture_rng(), capture_ambient()
    replayer = Replayer(tape, contextlib.nullcontext)
    event = Event(
        function=model, ambient=ambient, rng=rng, training=model.training, parameters=parameters,
        versions=versions_of(parameters),
        buffers=[
            (owner, key, value.detach().clone())
            for owner in model.modules() for key, value in owner._buffers.items() if value is not None
        ],
    )  # fmt: skip
    with torch.enable_grad():
        output = model(*args, **kwargs)
    tape.record(event, args, kwargs, output)
    root = _loss_of(output) if loss is None else None
    if loss is not None:
        given = labels if isinstance(labels, tuple) else (labels,)
        with torch.enable_grad():
            root = loss(output, *given)
        tape.record(Event(function=loss, ambient=ambient, rng=capture_rng()), (output, *given), {}, root)
    if root is None:
        raise HypocenterError("the model gives no loss", fix="give `loss`, a function of (output, *labels)")
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    unreached = _without_gradient(root, trained)
    with torch.no_grad():
        for owner, key, value in event.buffers:
            owner._buffers[key].copy_(value)  # type: ignore[union-attr]
    microbatch = tape.microbatch_of(0, 0, [root], [None])
    n_rows = next((int(t.shape[0]) for _, t in tensors((args, kwargs)) if t.dim() > 0), 0)
    subject = Subject(replayer, microbatch, names.module_name, n_rows)
    subject.without_gradient = unreached
    return subject


def _without_gradient(root: Tensor, trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the parameters to which no gradient comes; `backward` is asked, for a reversible layer calls it inside."""
    if not root.requires_grad:
        return {}
    held = {name: p.grad for name, p in trained.items()}
    try:
        for p in trained.values():
            p.grad = None
        root.sum().backward()
        return {name: p for name, p in trained.items() if p.grad is None or not bool(p.grad.any())}
    finally:
        for name, p in trained.items():
            p.grad = held[name]


def _loss_of(output: Any) -> Tensor | None:
    found = getattr(output, "loss", None)
    if isinstance(found, Tensor):
        return found
    if isinstance(output, Mapping) and isinstance(output.get("loss"), Tensor):
        return output["loss"]
    return next((t for _, t in tensors(output) if t.dim() == 0 and t.requires_grad), None)


with contextlib.suppress(ImportError):
    import pytest

    @pytest.fixture(name="check_relations")
    def _fixture() -> Callable[..., Looked]:
        """Provide `check_relations(model, batch)` to tests: see hypocenter.testing."""
        return check_relations


def sentence(broken: Broken) -> str:
    """Describe a broken relation in a sentence: what was changed, who noticed, where first, and by how much."""
    name = broken.module or "the model itself"
    where = f" in {name} ({broken.kind})" if broken.kind else " in code outside of modules"
    if broken.source is not None:
        where += f", before {broken.source.file}:{broken.source.line}"
    by = f"; named as an exception: {broken.exception}" if broken.exception else ""
    return (
        f"{broken.relation}: {broken.what}, and {broken.whom} moved by {broken.size:.2g} of their size "
        f"(at most {broken.limit:.2g}), first{where}{by}"
    )
