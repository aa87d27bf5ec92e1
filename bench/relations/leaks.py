"""Leaks that are put into a healthy model: each changes what one module computes, and says which relation it breaks.

A leak is a function of (model, generator) that mutates the model and gives the names of the modules that are right.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Apply = Callable[[nn.Module, str, nn.Module], None]
"""Mutates one module of a model, given by name."""


@dataclass(frozen=True, kw_only=True)
class Leak:
    """One kind of error.

    Attributes:
        relation: that it breaks.
        takes: words of class names of modules that it can be put into.
        apply: puts it there.
        models: names of models that it is for; empty: any that has such a module.
        is_outermost: the innermost module with such a name is not meant, but any.
    """

    relation: str
    takes: tuple[str, ...]
    apply: Apply
    models: tuple[str, ...] = ()


def _after(change: Callable[[Tensor], Tensor]) -> Apply:
    """What comes out of a module is changed."""

    def apply(model: nn.Module, name: str, module: nn.Module) -> None:
        forward = module.forward

        @functools.wraps(forward)
        def leaking(*args: Any, **kwargs: Any) -> Any:
            out = forward(*args, **kwargs)
            if isinstance(out, tuple):
                return (change(out[0]), *out[1:])
            return change(out)

        module.forward = leaking  # type: ignore[method-assign]

    return apply


def _mask(change: Callable[[Tensor], Tensor | None]) -> Apply:
    """The mask that a module is given is another one."""

    def apply(model: nn.Module, name: str, module: nn.Module) -> None:
        forward = module.forward
        signature = inspect.signature(forward)
        key = next(k for k in signature.parameters if k in ("attention_mask", "mask", "padded", "position_bias"))

        @functools.wraps(forward)
        def leaking(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            if isinstance(bound.arguments.get(key), Tensor):
                bound.arguments[key] = change(bound.arguments[key])
            return forward(*bound.args, **bound.kwargs)

        module.forward = leaking  # type: ignore[method-assign]

    return apply


def _method(name: str, body: Callable[..., Any]) -> Apply:
    """A method of a model of ours is another one."""

    def apply(model: nn.Module, path: str, module: nn.Module) -> None:
        setattr(module, name, types.MethodType(body, module))

    return apply


def _softmax_over(dim: int) -> Apply:
    """A softmax inside of a module runs over another dimension."""

    def apply(model: nn.Module, name: str, module: nn.Module) -> None:
        forward, right = module.forward, functional.softmax

        @functools.wraps(forward)
        def leaking(*args: Any, **kwargs: Any) -> Any:
            def wrong(x: Tensor, *a: Any, **k: Any) -> Tensor:
                k["dim"] = dim
                return torch.nan_to_num(right(x, **k))

            functional.softmax = wrong  # type: ignore[assignment]
            try:
                return forward(*args, **kwargs)
            finally:
                functional.softmax = right  # type: ignore[assignment]

        module.forward = leaking  # type: ignore[method-assign]

    return apply


def _label_reaches(model: nn.Module, name: str, module: nn.Module) -> None:
    """The model keeps the labels that it is called with, and this module adds them."""
    kept: list[Tensor] = []
    outer, inner = model.forward, module.forward

    @functools.wraps(outer)
    def keeping(*args: Any, **kwargs: Any) -> Any:
        kept[:] = [kwargs["labels"]]
        return outer(*args, **kwargs)

    @functools.wraps(inner)
    def leaking(*args: Any, **kwargs: Any) -> Any:
        out = inner(*args, **kwargs)
        first = out[0] if isinstance(out, tuple) else out
        label = kept[0].clamp(min=0).to(first.dtype)
        while label.dim() < first.dim():
            label = label.unsqueeze(-1)
        first = first + 0.05 * label * torch.linspace(-1, 1, first.shape[-1], dtype=first.dtype)
        return (first, *out[1:]) if isinstance(out, tuple) else first

    model.forward, module.forward = keeping, leaking  # type: ignore[method-assign]


def _decoder_is_fed_the_label(model: nn.Module, name: str, module: nn.Module) -> None:
    """Labels are not shifted before the decoder gets them."""
    forward = model.forward

    @functools.wraps(forward)
    def leaking(*args: Any, **kwargs: Any) -> Any:
        kwargs["decoder_input_ids"] = kwargs["labels"].clamp(min=0)
        return forward(*args, **kwargs)

    model.forward = leaking  # type: ignore[method-assign]


def _unshifted(model: nn.Module, name: str, module: nn.Module) -> None:
    """The loss asks for the token that is there."""

    def loss(logits: Tensor, labels: Tensor, vocab_size: int, **_: Any) -> Tensor:
        return functional.cross_entropy(logits.reshape(-1, vocab_size).float(), labels.reshape(-1))

    model.loss_function = loss  # type: ignore[assignment]


def _of_places(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Of [n, length, width] only: what is laid flat has no places to be mixed."""

    def checked(x: Tensor) -> Tensor:
        if x.dim() != 3:
            raise ValueError("this module's output is laid flat")
        return change(x)

    return checked


def _normed(dims: tuple[int, ...]) -> Apply:
    """Statistics over other dimensions."""
    return _after(lambda x: (x - x.mean(dims, keepdim=True)) / (x.std(dims, keepdim=True) + 1e-3))


def _more(mask: Tensor) -> Tensor:
    """One place more is seen: of numbers or of booleans."""
    allowed = (mask == 0) if mask.is_floating_point() else mask
    wider = allowed | torch.cat([allowed[..., :1], allowed[..., :-1]], -1)
    return (
        torch.zeros_like(mask).masked_fill(~wider, torch.finfo(mask.dtype).min) if mask.is_floating_point() else wider
    )


def _none(mask: Tensor) -> Tensor:
    return torch.zeros_like(mask) if mask.is_floating_point() else torch.ones_like(mask)


def _inverted(mask: Tensor) -> Tensor:
    if not mask.is_floating_point():
        return ~mask
    return torch.zeros_like(mask).masked_fill(mask == 0, torch.finfo(mask.dtype).min / 2)


LAYERS = ("Layer", "Block", "Attention", "MLP", "Mixture", "Encoder1D")
SEQUENCE_LM = ("gpt2", "llama", "mixtral", "opt", "mamba")
EAGER_LM = ("gpt2", "llama", "mixtral", "opt")
MASKED = ("bert", "bert-classifier", "t5", "bart")
LEAKS: dict[str, Leak] = {
    "mean over the batch": Leak(
        relation="samples", takes=LAYERS, apply=_after(lambda x: x - 0.5 * x.mean(0, keepdim=True))
    ),
    "view over two dimensions": Leak(
        relation="samples", takes=LAYERS, apply=_after(lambda x: x.transpose(0, 1).reshape(x.shape))
    ),
    "norm over the batch": Leak(relation="samples", takes=("Norm",), apply=_normed((0,))),
    "softmax over the batch": Leak(
        relation="samples", takes=LAYERS, apply=_after(lambda x: x * (x / x.std()).softmax(0))
    ),
    "state kept between samples": Leak(
        relation="samples", takes=LAYERS, apply=_after(lambda x: x + 0.1 * (x.cumsum(0) - x))
    ),
    "rows turned by one": Leak(relation="samples", takes=LAYERS, apply=_after(lambda x: x + 0.2 * x.roll(1, 0))),
    "largest of the batch": Leak(relation="samples", takes=LAYERS, apply=_after(lambda x: x / (1.0 + x.abs().amax(0)))),
    "no causal mask": Leak(relation="future", takes=("Attention",), apply=_mask(_none), models=EAGER_LM),
    "causal mask off by one": Leak(relation="future", takes=("Attention",), apply=_mask(_more), models=EAGER_LM),
    "softmax over queries": Leak(relation="future", takes=("Attention",), apply=_softmax_over(-2), models=EAGER_LM),
    "shifted the wrong way": Leak(
        relation="future", takes=LAYERS, apply=_after(_of_places(lambda x: x + 0.2 * x.roll(-1, 1))), models=SEQUENCE_LM
    ),
    "mean over places": Leak(
        relation="future",
        takes=LAYERS,
        apply=_after(_of_places(lambda x: x - 0.5 * x.mean(1, keepdim=True))),
        models=SEQUENCE_LM,
    ),
    "norm over places": Leak(relation="future", takes=("Norm",), apply=_normed((1,)), models=SEQUENCE_LM),
    "padding mask dropped": Leak(
        relation="padding", takes=("SelfAttention", "T5Attention", "BartAttention"), apply=_mask(_none), models=MASKED
    ),
    "padding mask inverted": Leak(
        relation="padding",
        takes=("SelfAttention", "T5Attention", "BartAttention"),
        apply=_mask(_inverted),
        models=MASKED,
    ),
    "mean over padding": Leak(
        relation="padding",
        takes=("BertLayer", "BertOutput"),
        apply=_after(lambda x: x - 0.5 * x.mean(1, keepdim=True)),
        models=("bert", "bert-classifier"),
    ),
    "label reaches a layer": Leak(
        relation="label",
        takes=LAYERS,
        apply=_label_reaches,
        models=("bert-classifier", "vit", "resnet", "swin", "bert"),
    ),
    "decoder is fed its label": Leak(
        relation="label", takes=("",), apply=_decoder_is_fed_the_label, models=("t5", "bart")
    ),
    "labels not shifted": Leak(relation="label", takes=("",), apply=_unshifted, models=EAGER_LM),
    "own: no causal mask": Leak(
        relation="future",
        takes=("Attention",),
        models=("own-gpt",),
        apply=_method("hidden", lambda self, length: torch.zeros(length, length, dtype=torch.bool)),
    ),
    "own: mask off by one": Leak(
        relation="future",
        takes=("Attention",),
        models=("own-gpt",),
        apply=_method("hidden", lambda self, length: torch.ones(length, length, dtype=torch.bool).triu(2)),
    ),
    "own: mask transposed": Leak(
        relation="future",
        takes=("Attention",),
        models=("own-gpt",),
        apply=_method("hidden", lambda self, length: torch.ones(length, length, dtype=torch.bool).tril(-1)),
    ),
    "own: softmax over queries": Leak(
        relation="future",
        takes=("Attention",),
        models=("own-gpt",),
        apply=_method("weights", lambda self, scores: scores.softmax(-2)),
    ),
    "own: softmax over samples": Leak(
        relation="samples",
        takes=("Mixture", "Attention"),
        models=("own-experts", "own-encoder"),
        apply=_method("weights", lambda self, scores: scores.softmax(0)),
    ),
    "own: recurrent over samples": Leak(
        relation="samples",
        takes=("GRU",),
        models=("own-recurrent",),
        apply=lambda model, name, module: setattr(module, "batch_first", False),
    ),
    "own: both directions": Leak(
        relation="future",
        takes=("GRU",),
        models=("own-recurrent",),
        apply=_after(lambda x: x + x.flip(1).cumsum(1).flip(1) * 0.1),
    ),
    "own: padding mask dropped": Leak(
        relation="padding", takes=("Attention",), models=("own-encoder",), apply=_mask(torch.zeros_like)
    ),
    "own: padding mask inverted": Leak(
        relation="padding", takes=("Attention",), models=("own-encoder",), apply=_mask(lambda mask: ~mask)
    ),
    "own: mean with padding": Leak(
        relation="padding",
        takes=("Encoder",),
        models=("own-encoder",),
        apply=_method("pool", lambda self, x, real: x.mean(1)),
    ),
}
