"""What is done to a good program: one function for each kind of difference, `EDITS[name](setup, **arguments)`."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from networks import N_HEADS, WIDTH
from torch import nn
from training import DTYPES, Setup

EDITS: dict[str, Callable[..., None]] = {}


def edit(function: Callable[..., None]) -> Callable[..., None]:
    """Register under the function's name."""
    EDITS[function.__name__] = function
    return function


def _modules(setup: Setup, pattern: str) -> Iterator[tuple[str, nn.Module]]:
    found = [(name, one) for name, one in setup.model.named_modules() if fnmatch.fnmatchcase(name, pattern)]
    assert found, pattern
    yield from found


def _parameters(setup: Setup, pattern: str) -> Iterator[nn.Parameter]:
    found = [one for name, one in setup.model.named_parameters() if fnmatch.fnmatchcase(name, pattern)]
    assert found, pattern
    yield from found


def _patch(setup: Setup, owner: Any, name: str, new: Any) -> None:
    old = getattr(owner, name)
    setattr(owner, name, new)
    setup.restore.callback(setattr, owner, name, old)


@edit
def norm_eps(setup: Setup, *, module: str, eps: float) -> None:
    for _, norm in _modules(setup, module):
        setattr(norm, "eps" if hasattr(norm, "eps") else "variance_epsilon", eps)


@edit
def precision(setup: Setup, *, module: str, dtype: str) -> None:
    """The module's parameters and arithmetic in another format; its outputs come back in the model's."""
    kind = DTYPES[dtype]
    for _, one in _modules(setup, module):
        one.to(kind)
        forward = one.forward

        def cast(*args: Any, _forward: Any = forward, **kwargs: Any) -> Any:
            out = _forward(*_to(args, kind), **_to(kwargs, kind))
            return _to(out, setup.dtype)

        one.forward = cast


@edit
def autocast(setup: Setup, *, module: str) -> None:
    for _, one in _modules(setup, module):
        forward = one.forward

        def cast(*args: Any, _forward: Any = forward, **kwargs: Any) -> Any:
            with torch.autocast("cpu", torch.bfloat16):
                return _to(_forward(*args, **kwargs), setup.dtype)

        one.forward = cast


def _to(thing: Any, dtype: torch.dtype) -> Any:
    if isinstance(thing, torch.Tensor):
        return thing.to(dtype) if thing.is_floating_point() else thing
    if isinstance(thing, dict):
        return {key: _to(value, dtype) for key, value in thing.items()}
    if isinstance(thing, tuple):
        return tuple(_to(value, dtype) for value in thing)
    return thing


@edit
def activation(setup: Setup, *, module: str, name: str, attribute: str = "act") -> None:
    from transformers.activations import ACT2FN

    for _, one in _modules(setup, module):
        setattr(one, attribute, ACT2FN[name])


def _interleaved(x: torch.Tensor) -> torch.Tensor:
    return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)


@edit
def rotary_code(setup: Setup) -> None:
    """The code rotates neighbours (GPT-J) in place of halves (NeoX)."""
    from transformers.models.qwen2 import modeling_qwen2

    def rotate(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
        half = cos.shape[-1] // 2
        cos, sin = (each[..., :half].repeat_interleave(2, -1).unsqueeze(unsqueeze_dim) for each in (cos, sin))
        return q * cos + _interleaved(q) * sin, k * cos + _interleaved(k) * sin

    _patch(setup, modeling_qwen2, "apply_rotary_pos_emb", rotate)


@edit
def rotary_table(setup: Setup) -> None:
    """Another table of angles and another rotation: both for neighbours in place of halves."""
    from transformers.models.qwen2 import modeling_qwen2

    rotary = setup.model.model.rotary_emb
    forward = rotary.forward

    def table(*args: Any, **kwargs: Any) -> Any:
        half = WIDTH // N_HEADS // 2
        return tuple(each[..., :half].repeat_interleave(2, -1) for each in forward(*args, **kwargs))

    def rotate(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
        cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
        return q * cos + _interleaved(q) * sin, k * cos + _interleaved(k) * sin

    rotary.forward = table
    _patch(setup, modeling_qwen2, "apply_rotary_pos_emb", rotate)


@edit
def rotary_weights(setup: Setup, *, layer: str) -> None:
    """Queries and keys were converted for the other layout: rows of each head permuted."""
    width = WIDTH // N_HEADS
    order = torch.arange(width).view(2, width // 2).T.reshape(-1)
    with torch.no_grad():
        for pattern in ("q_proj.*", "k_proj.*"):
            for parameter in _parameters(setup, f"{layer}.{pattern}"):
                heads = parameter.view(-1, width, *parameter.shape[1:])
                parameter.copy_(heads[:, order].reshape(parameter.shape).clone())


@edit
def heads_of_weight(setup: Setup, *, parameter: str, dim: int = 0, n: int = N_HEADS) -> None:
    """Blocks of a parameter, one for each head, in another order."""
    with torch.no_grad():
        for one in _parameters(setup, parameter):
            parts = one.chunk(n, dim=dim)
            one.copy_(torch.cat([*parts[1:], parts[0]], dim=dim).clone())


@edit
def split_of_fused(setup: Setup, *, parameter: str, dim: int = -1) -> None:
    """Fused weights laid out head by head (q, k, v of each) in place of all of q, all of k, all of v."""
    with torch.no_grad():
        for one in _parameters(setup, parameter):
            parts = [part.chunk(N_HEADS, dim=dim) for part in one.chunk(3, dim=dim)]
            one.copy_(torch.cat([part[head] for head in range(N_HEADS) for part in parts], dim=dim).clone())


@edit
def heads_in_code(setup: Setup, *, module: str) -> None:
    """The heads' results are put together in another order."""
    _attention(setup, module, lambda out: out.roll(1, dims=2))


def _attention(setup: Setup, module: str, change: Callable[[torch.Tensor], torch.Tensor], **told: Any) -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS as known

    name = setup.model.config._attn_implementation
    old, targets = known[name], {one for _, one in _modules(setup, module)}

    def attention(one: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if one not in targets:
            return old(one, *args, **kwargs)
        out, *rest = old(one, *args, **kwargs)
        return (change(out), *rest)

    known[name] = attention
    setup.restore.callback(known.__setitem__, name, old)


@edit
def transposed(setup: Setup, *, parameter: str) -> None:
    with torch.no_grad():
        for one in _parameters(setup, parameter):
            one.copy_(one.T.clone())


@edit
def without_bias(setup: Setup, *, module: str) -> None:
    """The module has no bias at all."""
    for _, one in _modules(setup, module):
        del one.bias
        one.register_parameter("bias", None)
        if not isinstance(one, nn.Linear):  # Conv1D of GPT-2
            one.forward = lambda x, one=one: x @ one.weight


@edit
def zero_bias(setup: Setup, *, parameter: str) -> None:
    """The bias was not loaded: it is zero."""
    with torch.no_grad():
        for one in _parameters(setup, parameter):
            one.zero_()


@edit
def norm_plus_one(setup: Setup, *, module: str) -> None:
    """The code multiplies by 1 + weight, as Gemma's does."""
    for _, one in _modules(setup, module):
        if isinstance(one, nn.LayerNorm):
            one.forward = lambda x, one=one: F.layer_norm(x, one.normalized_shape, 1.0 + one.weight, one.bias, one.eps)
        else:
            one.forward = lambda x, one=one: (
                (1.0 + one.weight.float())
                * (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + one.variance_epsilon))
            ).to(x.dtype)


@edit
def norm_minus_one(setup: Setup, *, parameter: str) -> None:
    """The weights were saved for code that adds 1."""
    with torch.no_grad():
        for one in _parameters(setup, parameter):
            one.sub_(1.0)


@edit
def scaled_output(setup: Setup, *, module: str, factor: float) -> None:
    """The module's own code multiplies what it gives."""
    for _, one in _modules(setup, module):
        forward = one.forward
        one.forward = lambda *args, _forward=forward, **kwargs: _times(_forward(*args, **kwargs), factor)


def _times(out: Any, factor: float) -> Any:
    return (out[0] * factor, *out[1:]) if isinstance(out, tuple) else out * factor


@edit
def attention_scale(setup: Setup, *, module: str, factor: float) -> None:
    """The softmax is of scores with another scale."""
    for _, one in _modules(setup, module):
        one.scaling *= factor


@edit
def unscaled_decoder(setup: Setup) -> None:
    """T5 of version 1.0 divides hidden values by sqrt(d_model) before the head; this one forgets to."""
    assert setup.model.config.scale_decoder_outputs
    setup.model.config.scale_decoder_outputs = False


@edit
def loss_times(setup: Setup, *, factor: float) -> None:
    loss = setup.loss or (lambda logits, target: F.cross_entropy(logits, target, ignore_index=0))
    setup.loss = lambda logits, target: loss(logits, target) * factor


@edit
def label_shift(setup: Setup, *, shift: int) -> None:
    setup.shift = shift


@edit
def decay(setup: Setup, **decays: float) -> None:
    setup.decay |= decays


@edit
def optimizer(setup: Setup, **options: Any) -> None:
    setup.optimizer |= options


@edit
def initial(setup: Setup, *, parameter: str, times: float = 1.0, seed: int | None = None) -> None:
    """Another standard deviation, or another draw of the same."""
    generator = torch.Generator().manual_seed(seed or 0)
    with torch.no_grad():
        for one in _parameters(setup, parameter):
            if seed is not None:
                std = float(one.float().std())
                one.copy_(torch.randn(one.shape, generator=generator) * std)
            one.mul_(times)


@edit
def wider_mask(setup: Setup, *, n: int = 1) -> None:
    """The padding mask shows `n` more tokens of each row that has padding."""
    for batch in (batch for step in setup.batches for batch in step):
        mask = batch["attention_mask"]
        lengths = (mask.sum(1) + n).clamp(max=mask.shape[1])
        batch["attention_mask"] = (torch.arange(mask.shape[1])[None, :] < lengths[:, None]).long()


@edit
def future_mask(setup: Setup, *, module: str) -> None:
    """The causal mask of one attention shows one token of the future."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS as known

    name = setup.model.config._attn_implementation
    old, targets = known[name], {one for _, one in _modules(setup, module)}

    def attention(one: nn.Module, q: Any, k: Any, v: Any, mask: Any, **kwargs: Any) -> Any:
        if one not in targets:
            return old(one, q, k, v, mask, **kwargs)
        wide = torch.ones(q.shape[2], k.shape[2]).tril(1).bool()[None, None]
        return old(one, q, k, v, wide.expand(q.shape[0], -1, -1, -1), **{**kwargs, "is_causal": False})

    known[name] = attention
    setup.restore.callback(known.__setitem__, name, old)


@edit
def accumulation(setup: Setup, *, divisor: float) -> None:
    """What the loss of each micro-batch is divided by."""
    setup.divisor = divisor


@edit
def batch_order(setup: Setup, *, steps: list[int]) -> None:
    setup.batches = [setup.batches[step] for step in steps]


@edit
def row_order(setup: Setup) -> None:
    """The same rows in each batch, in another order."""
    setup.batches = [[{k: v.flip(0) for k, v in batch.items()} for batch in step] for step in setup.batches]


@edit
def dropout(setup: Setup, *, module: str, p: float) -> None:
    for _, one in _modules(setup, module):
        one.p = p


@edit
def clip(setup: Setup, *, norm: float) -> None:
    setup.clip = norm


# ---- what changes nothing but the order of sums -----------------------------------------------------------------


@edit
def flat_norm(setup: Setup) -> None:
    """Gradients are clipped by the norm of one flat buffer, as Megatron's are: a sum that threads share out.

    Matrix products have the same bits with 1, 2, 3, 4 and 8 threads here (MKL), sums of more than 2**15 elements not.
    """
    setup.is_norm_flat = True


@edit
def even_rows(setup: Setup) -> None:
    """Both halves of each batch have as many labels: then the mean of the ranks' losses is that of the whole batch."""
    for batch in (batch for step in setup.batches for batch in step):
        known = batch["tokens"] != 0
        half = known[: len(known) // 2] & known[len(known) // 2 :]
        known = half.repeat(2, 1)
        for key in ("tokens", "decoder_input_ids" if setup.network == "t5" else "input_ids"):
            batch[key] = batch[key] * known[:, : batch[key].shape[1]]
        if setup.network != "t5":
            batch["attention_mask"] = (batch["input_ids"] != 0).long()


@edit
def threads(setup: Setup, *, n: int) -> None:
    setup.n_threads = n


@edit
def sdpa(setup: Setup, *, backend: str) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    setup.restore.enter_context(sdpa_kernel(getattr(SDPBackend, backend)))


@edit
def eager(setup: Setup) -> None:
    setup.model.set_attn_implementation("eager")


@edit
def split_rows(setup: Setup) -> None:
    """Matrix products of half the rows at a time."""
    _products(setup, lambda forward, x: torch.cat([forward(part) for part in x.chunk(2, dim=0)]))


@edit
def shuffled_sums(setup: Setup, *, seed: int) -> None:
    """Matrix products that take the inputs in an order of their own."""
    for _, one in setup.model.named_modules():
        if type(one) is nn.Linear or type(one).__name__ == "Conv1D":
            dim = 1 if type(one) is nn.Linear else 0
            order = torch.randperm(one.weight.shape[dim], generator=torch.Generator().manual_seed(seed))
            one.forward = lambda x, one=one, dim=dim, order=order: _shuffled(x, one, dim, order)


def _shuffled(x: torch.Tensor, one: Any, dim: int, order: torch.Tensor) -> torch.Tensor:
    weight = one.weight.index_select(dim, order)
    return F.linear(x[..., order], weight if dim else weight.T, one.bias)


@edit
def split_sums(setup: Setup) -> None:
    """Matrix products as sums of two, each over half of the inputs."""
    for _, one in setup.model.named_modules():
        if type(one) is nn.Linear:
            one.forward = lambda x, one=one: _halves(x, one.weight.T, one.bias)
        elif type(one).__name__ == "Conv1D":
            one.forward = lambda x, one=one: _halves(x, one.weight, one.bias)


def _halves(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    half = weight.shape[0] // 2
    out = (x[..., :half].float() @ weight[:half].float()) + (x[..., half:].float() @ weight[half:].float())
    return (out if bias is None else out + bias.float()).to(x.dtype)


def _products(setup: Setup, how: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
    for _, one in setup.model.named_modules():
        if type(one) is nn.Linear or type(one).__name__ == "Conv1D":
            one.forward = lambda x, _forward=one.forward: how(_forward, x)


@edit
def other_sums_of_norms(setup: Setup) -> None:
    """Means of norms over the elements in reverse, in two halves."""
    for _, one in setup.model.named_modules():
        if type(one) is nn.LayerNorm or type(one).__name__.endswith(("RMSNorm", "T5LayerNorm")):
            one.forward = lambda x, one=one: _norm(x, one)


def _norm(x: torch.Tensor, one: nn.Module) -> torch.Tensor:
    values = x.float()
    if isinstance(one, nn.LayerNorm):
        values = values - _mean(values)
        out = values * torch.rsqrt(_mean(values * values) + one.eps)
        return (out * one.weight.float() + one.bias.float()).to(x.dtype)
    out = (values * torch.rsqrt(_mean(values * values) + one.variance_epsilon)).to(x.dtype)
    return one.weight * out


def _mean(values: torch.Tensor) -> torch.Tensor:
    half = values.shape[-1] // 2
    flipped = values.flip(-1)
    total = flipped[..., :half].sum(-1, keepdim=True) + flipped[..., half:].sum(-1, keepdim=True)
    return total / values.shape[-1]


@edit
def loss_by_token(setup: Setup) -> None:
    """The loss as a mean over tokens by hand, the last token first."""

    def loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        known = target != 0
        picked = logits[known].gather(1, target[known][:, None])[:, 0]
        return (logits[known].logsumexp(1) - picked).flip(0).sum() / int(known.sum())

    setup.loss = loss


@edit
def single_tensor_updates(setup: Setup) -> None:
    setup.optimizer |= {"foreach": False}


@edit
def fused_updates(setup: Setup) -> None:
    setup.optimizer |= {"fused": True}
