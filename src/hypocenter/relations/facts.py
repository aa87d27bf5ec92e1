"""What the unchanged micro-batch tells: which dimension is the batch, which outputs count, what the loss asks for."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from hypocenter.relations.subject import OUTER, TOLERANCE, Given, Key, Ran, Subject, Way, local

_LABEL_NAMES = ("label", "target", "tgt", "answer")
_MEETING = ("Attention", "Transformer", "RNN", "GRU", "LSTM", "Graph", "GCN", "GAT", "Message")
_ROUNDING = 1e-2  # of slopes that were computed in bfloat16, relative to the largest
_LEAST_MATCHES = 4  # places at which a target is compared with an input, before anything is concluded
_AGREE = 0.99


class CannotTell(Exception):
    """Raised where a relation cannot be asked of this micro-batch, or its answer means nothing; says why."""


@dataclass(slots=True, kw_only=True)
class Facts:
    """What is known of a micro-batch before anything is changed.

    Attributes:
        ran: the unchanged forward; outputs without graph, those that the loss is made of only.
        n_rows: samples; 0: not known.
        is_certain: somebody has said so.
        may_be_second: inputs and labels share their second dimension as well: that may be the batch.
        logits: the output whose last dimension is over what is to be predicted.
        targets: at each place of it the index that the loss asks for, -1 where it asks for none.
        scored: all such outputs with their targets, the first of which is `logits`.
        is_laid_out: labels or tokens of the same layout are known to belong to these places.
        labels: inputs that hold what is to be predicted.
        drawn_to: those of one number a sample to which the loss draws an output: no other target stands in between.
        tolerance: how far what must stay may move.
        relates_rows: an input that tells which samples belong together, or holds several of them in a row, by name.
        is_low: something is computed in a format lower than float32.
        evaluation: see hypocenter.relations.evaluation.
        kept: the unchanged forward again with all calls of modules, if it was asked for.
        other_draws: the same with other random numbers.
    """

    ran: Ran
    n_rows: int = 0
    is_certain: bool = False
    may_be_second: bool = False
    logits: Key | None = None
    targets: Tensor | None = None
    scored: list[tuple[Key, Tensor]] = field(default_factory=list[tuple[Key, Tensor]])
    is_laid_out: bool = False
    labels: list[Given] = field(default_factory=list[Given])
    drawn_to: list[Tensor] = field(default_factory=list[Tensor])
    tolerance: float = 0.0
    relates_rows: str = ""
    is_low: bool = False
    evaluation: Any = None
    kept: dict[Way, Ran] = field(default_factory=dict[Way, Ran])
    other_draws: dict[Way, Ran] = field(default_factory=dict[Way, Ran])


class Listener(Protocol):
    """What else wants to hear of the unchanged forward."""

    def listening(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context that is entered around the forward."""
        ...

    def take(self, ran: Ran) -> None:
        """Take note of the finished forward while its graph still exists."""
        ...


def facts_of(subject: Subject, listener: Listener | None = None) -> Facts:
    """Collect the facts from one forward, and the backward through what the loss does with its outputs.

    Raises:
        CannotTell: of what it is made cannot be seen; the listener was told all the same.
    """
    grads: dict[Key, Tensor] = {}
    why: list[CannotTell] = []

    def look(ran: Ran) -> None:
        if listener is not None:
            listener.take(ran)
        try:
            grads.update({key: local(gradient) for key, gradient in gradients_of(ran).items()})
        except CannotTell as error:
            why.append(error)

    ran = subject.run(then=look, beside=None if listener is None else listener.listening())
    if why:
        raise why[0]
    ran.outputs = {key: ran.outputs[key] for key in grads}
    facts = Facts(ran=ran, tolerance=subject.tolerance(ran))
    facts.is_low = facts.tolerance > TOLERANCE
    _find_rows(subject, facts)
    facts.labels = [each for each in subject.given if _is_label(each)]
    _find_targets(facts, grads, [each.tensor for each in subject.given])
    pairs = [(ran.outputs[key], gradient) for key, gradient in grads.items()]
    single = [each.tensor for each in facts.labels if each.tensor.dim() == 1]
    facts.drawn_to = [label for label in single if any(_is_drawn(*pair, label) for pair in pairs)]
    return facts


def _is_drawn(output: Tensor, gradient: Tensor, label: Tensor) -> bool:
    """Return whether the loss draws each sample's output to its label: as a class, one of two, or a number.

    For a class the slope is negative there. As one of two, or as a number (of which the loss compares the difference),
    the slope has the right sign and grows with the output, or with the difference.
    """
    if not len(label) or output.shape[:1] != label.shape or output.shape != gradient.shape:  # of a large one, some
        return False
    values, slopes = output.reshape(len(label), -1).double(), gradient.reshape(len(label), -1).double()
    counts = (slopes != 0).any(1)
    values, slopes, label = values[counts], slopes[counts], label[counts]
    n_values = values.shape[1]
    if not len(label):
        return False
    if n_values > 1 and not label.is_floating_point() and 0 <= int(label.min()) <= int(label.max()) < n_values:
        return bool((slopes.gather(1, label.long().unsqueeze(1)) < 0).all())
    if bool(((slopes != 0).sum(1) > 1).any()):
        return False
    value, slope, wanted = values[slopes != 0], slopes[slopes != 0], label.double()
    if len(wanted.unique()) == 2:
        groups = [wanted == each for each in wanted.unique()]
        is_towards = bool((slope.sign() == (wanted.mean() - wanted).sign()).all())
        if is_towards and all(_grows(slope[group], value[group]) for group in groups):
            return True
    return bool((slope * (value - wanted) >= 0).all()) and _grows(slope, value - wanted)


def _grows(slopes: Tensor, along: Tensor) -> bool:
    """Return whether the slopes, in the order of the values `along`, never fall by more than rounding."""
    ordered = slopes[along.argsort()]
    return bool((ordered.diff() >= -_ROUNDING * slopes.abs().max()).all())


def gradients_of(ran: Ran) -> dict[Key, Tensor]:
    """Return gradients of outputs that the loss is made of: of outermost modules if any, else of the last inner one."""
    loss = next((v for v in ran.losses if v.requires_grad), None)
    if loss is None:
        raise CannotTell("its loss has no gradient")
    if not all(bool(torch.isfinite(v).all()) for v in ran.losses):
        raise CannotTell("its loss is not finite")
    roots = [v for v in ran.losses if v.requires_grad]
    found = {k: v for k, v in ran.outputs.items() if v.grad_fn is not None and v.dim() > 0 and v is not loss}
    outer = {key: v for key, v in found.items() if key[0].startswith(OUTER) and v.dim() > 1}
    inner = {key: v for key, v in found.items() if key not in outer and v.dim() > 1}
    chosen = _nearest(roots, outer) or _nearest(roots, inner)[-1:] or _nearest(roots, found)
    if not chosen:
        raise CannotTell("no output of a module leads to its loss")
    grads = torch.autograd.grad([v.sum() for v in roots], [found[key] for key in chosen], allow_unused=True)
    return {key: g for key, g in zip(chosen, cast("Sequence[Tensor | None]", grads), strict=True) if g is not None}


def _nearest(roots: Sequence[Tensor], outputs: dict[Key, Tensor]) -> list[Key]:
    """Return the outputs from which a loss is computed with no other output in between, in the order of their calls."""
    at = {(v.grad_fn, v.output_nr): key for key, v in outputs.items()}
    seen, found = set[Any](), set[Key]()
    left = [(v.grad_fn, v.output_nr) for v in roots]
    while left and at:
        node, number = left.pop()
        if (node, number) in at:
            found.add(at[node, number])
        elif node is not None and node not in seen:
            seen.add(node)
            left += node.next_functions
    return [key for key in outputs if key in found]


def _is_label(given: Given) -> bool:
    return not given.is_of_model or any(word in given.name.lower() for word in _LABEL_NAMES)


def _find_rows(subject: Subject, facts: Facts) -> None:
    shaped = [each for each in subject.given if each.tensor.dim() > 0]
    of_model = [each for each in shaped if each.is_of_model and not _is_label(each)]
    if subject.n_rows:
        facts.n_rows, facts.is_certain = subject.n_rows, True
    elif of_model and of_model[0].tensor.dim() > 1:
        shapes = [each.tensor.shape for each in shaped if _is_label(each)]
        _guess_rows(facts, of_model, shapes, [shape for shape in facts.ran.beside if shape])
    facts.relates_rows = next((name for each in of_model if (name := _relating(each, facts.n_rows))), "")
    facts.relates_rows = facts.relates_rows or _outside(subject, facts.n_rows) or subject.mixing
    if facts.n_rows and not facts.is_certain and not facts.relates_rows:
        main = of_model[0].tensor
        facts.relates_rows = next((name for m in subject.modules if (name := _rows_meet(m, main))), "")


def _guess_rows(
    facts: Facts, of_model: Sequence[Given], labels: Sequence[torch.Size], beside: Sequence[torch.Size]
) -> None:
    """Take the first dimension as the samples if labels, or other inputs of the call, and an output share it.

    Args:
        labels: shapes of those that the program has given.
        beside: of what loss code has made of them. They tell nothing more of a batch that the program itself has given
            with another length: `x[:, 1:]` of it is as long as the inputs `x[:, :-1]`.
    """
    main, call = of_model[0].tensor, of_model[0].place[0]
    n, second = int(main.shape[0]), int(main.shape[1])
    is_given = any(shape[0] == n for shape in labels)
    told = labels if is_given else (*labels, *beside)
    is_shared = any(shape[0] == n or shape == (n * second,) for shape in told)
    others = [each.tensor for each in of_model[1:] if each.place[0] == call]
    is_shared = is_shared or any(t.dim() > 1 and t.shape[0] == n for t in others)
    is_given_back = any(t.dim() > 0 and t.shape[0] == n for t in facts.ran.outputs.values())
    facts.n_rows = n if is_shared and is_given_back else 0
    facts.may_be_second = n == second or any(shape[1:2] == (second,) or shape == (n * second,) for shape in told)


def _rows_meet(module: nn.Module, main: Tensor) -> str:
    """Return a part in which rows of a table may meet (attention, recurrence, a graph), by name; "": none."""
    n = len(main)
    if main.dim() != 2 or not main.is_floating_point():
        return ""
    for name, part in module.named_modules():
        if any(word in type(part).__name__ for word in _MEETING):
            return name or type(part).__name__
    for name, value in module.named_buffers():
        if value.layout != torch.strided or value.shape == (n, n):
            return name
    return ""


def _relating(given: Given, n: int) -> str:
    """Return the name of this input if it may tell which rows belong together (edges, a matrix, groups); "" if not."""
    tensor = given.tensor
    if not n or tensor.is_complex():
        return ""
    if "cu_seqlens" in given.name or "edge" in given.name or _is_packed(tensor, n):
        return given.name
    if tensor.shape == (n, n) and n > 2 and tensor.is_floating_point():
        return given.name
    is_whole = tensor.dtype in (torch.int64, torch.int32)
    if is_whole and n not in tensor.shape and tensor.dim() == 2 and len(tensor) == 2:
        is_index = bool((tensor >= 0).all()) and bool((tensor < n).all())
        return given.name if is_index and len(tensor.unique()) > 2 else ""
    if is_whole and tensor.shape == (n,) and n > 2:
        steps = tensor[1:] - tensor[:-1]
        is_group = bool((steps >= 0).all()) and bool((steps <= 1).all()) and int(tensor[0]) == 0
        return given.name if is_group and bool((steps == 0).any()) and bool((steps == 1).any()) else ""
    return ""


def _outside(subject: Subject, n: int) -> str:
    """Return the name of an index that picks rows outside of modules, in another order or not all; "": none."""
    for each in subject.given:
        if id(each) in subject.picking and each.tensor.dim() > 0 and each.tensor.numel():
            is_all = each.tensor.shape == (n,) and bool(
                (each.tensor == torch.arange(n, device=each.tensor.device)).all()
            )
            if n and not is_all and bool((each.tensor >= 0).all()) and bool((each.tensor < n).all()):
                return each.name
    return ""


def _is_packed(tensor: Tensor, n: int) -> bool:
    """Return whether the first dimension may hold parts of samples one after the other: no positions, no matrix."""
    if tensor.dim() == 0 or tensor.shape[0] <= n or (tensor.dim() == 2 and tensor.shape[0] == tensor.shape[1]):
        return False
    return tensor.dim() > 1 or bool((tensor[1:] - tensor[:-1] != 1).any()) if tensor.dtype != torch.bool else False


def _find_targets(facts: Facts, grads: dict[Key, Tensor], tokens: Sequence[Tensor]) -> None:
    """Find the targets of cross-entropy: its gradient is softmax minus one-hot, negative at the target only."""
    for key, gradient in grads.items():
        if gradient.dim() < 2 or gradient.shape[-1] < 3 or facts.n_rows == 0:
            continue
        if gradient.shape[0] not in (facts.n_rows, gradient[..., 0].numel()):
            continue
        n_negative = (gradient < 0).sum(-1)
        if bool((n_negative > 1).any()) or not bool((n_negative == 1).any()):
            continue
        lowest, index = gradient.min(dim=-1)
        facts.scored.append((key, torch.where(lowest < 0, index, -1)))
        if facts.logits is not None:
            continue
        facts.logits, facts.targets = facts.scored[0]
        facts.is_laid_out = any(
            each.shape == facts.targets.shape and shift_of(each, facts.targets) is not None
            for each in tokens if each.dim() == 2 and each.shape[0] == facts.n_rows and not each.is_floating_point()
        )  # fmt: skip


def shift_of(inputs: Tensor, targets: Tensor) -> int | None:
    """Return how many places later in the input the target stands, 0 or 1; None if neither fits, or both do.

    Args:
        inputs: [n, length] of integers.
        targets: [n, length], -1: nothing is asked for.
    """
    found = [shift for shift in (0, 1) if stand_later(inputs, targets, shift)]
    return found[0] if len(found) == 1 else None


def stand_later(inputs: Tensor, targets: Tensor, shift: int) -> bool:
    """Return whether the targets stand `shift` places later in the inputs; both are [n, length]."""
    length = inputs.shape[1]
    asked, there = targets[:, : length - shift], inputs[:, shift:]
    counts = asked >= 0
    n = int(counts.sum())
    if n < _LEAST_MATCHES or len(asked[counts].unique()) < 3:
        return False
    return float((asked[counts] == there[counts]).sum()) >= _AGREE * n
