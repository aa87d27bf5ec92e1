"""What a replay found out about one failure: written to `bundles/<id>/evidence.json`, read by the causes.

Everything here is plain data (msgspec decodes it, hostile bytes give an error, never code). The recording half writes
it; `diagnose` reads it live, after a crash, and on a laptop.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

from hypocenter.nouns import Phase, Remedy, Source, Summary

FORMAT = 1
# 1: first version

Trigger = Literal[
    "nonfinite-loss", "nonfinite-grad", "nonfinite-param", "nonfinite-activation", "nonfinite-output", "unused-loss",
    "dead-grad", "skipped-step", "grad-underflow", "spike", "crash",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFacts:
    """A tensor that was an input or an output of the blamed op."""

    name: str  # "in[0]", "out[0]", "weight", "batch input_ids", ...
    dtype: str
    shape: tuple[int, ...] = ()
    summary: Summary = field(default_factory=Summary)
    origin: str = ""  # what made it: a parameter's name, "batch[labels]", a buffer's name, or an op and its site
    literal_inf: bool = False  # all its infinities are constants the program wrote (masks)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpFacts:
    """One executed operator."""

    index: int  # execution order in the traced replay
    op: str  # aten.mul.Tensor
    phase: Phase
    site: str  # module path; "" in the root's own code, "loss" in loss code outside every module
    module: str = ""  # class name
    port: str = "out[0]"
    source: Source | None = None  # innermost line outside torch; for backward: of the forward op
    stack: tuple[Source, ...] = ()  # lines that called it, the outermost first, without `source`
    node: str = ""  # autograd node name in backward: SqrtBackward0
    inputs: tuple[TensorFacts, ...] = ()
    outputs: tuple[TensorFacts, ...] = ()
    scalars: dict[str, float | int | bool | str | list[int]] = field(default_factory=dict)  # its non-tensor arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """The blamed op executed again on its captured inputs."""

    ran: bool = False
    why_not: str = ""
    finite: bool = False
    absmax: float = 0.0  # largest finite magnitude of the output, where the original was not finite if possible
    n_nonfinite: int = 0
    equal_bits: bool = False  # to the original output, the first time or any later one
    n_runs: int = 1  # times that it was executed
    repeats: bool = True  # all of them gave the same bits
    part: str = ""  # "512 of 262,144 rows", where not all of it was done again


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """One way to make the failed step finite, as it came out in a replay."""

    action: str  # fp32-island, fp32-lines, bf16-module, prescale, lower-scale, clamp
    targets: tuple[str, ...] = ()  # modules; lines as file:line; a loss scale
    verified: bool = False  # loss and all gradients finite with it
    why_not: str = ""  # why it could not be tried, or did not help
    cost: Annotated[float | None, Meta(description="Time of the replayed step with it, divided by that without.")] = (
        None
    )
    share: Annotated[
        float | None, Meta(description="Of the model's parameters that belong to the targets, 0 to 1.")
    ] = None
    error: Annotated[
        float | None, Meta(description="Relative L2 distance of all gradients from those of a float64 replay.")
    ] = None
    text: str = ""  # the change, in words


@dataclass(frozen=True, slots=True, kw_only=True)
class Cure:
    """The smallest float32 island that makes the failed step finite, and what else was tried."""

    status: Literal["cured", "no-cure", "cannot-tell"]
    action: str = "fp32-island"
    targets: tuple[str, ...] = ()  # module paths, "" for the model itself; file:line for loss code
    verified: bool = False  # the step was replayed with exactly these
    cast_back: bool = True  # their results go back to the low precision; False: they stay float32
    minimal: bool = False  # without any one of them the step was not finite
    replays: int = 0
    seconds: float = 0.0
    n_candidates: int = 0  # modules that were looked among
    n_params: int = 0  # gradients that were finite with it
    n_microbatches: int = 0  # of the step, all replayed
    scale: float | None = None  # loss scale of the replays; None: no scaler
    lines: tuple[Source, ...] = ()  # lines inside the targets that suffice in float32 alone
    ops: tuple[str, ...] = ()  # single functions inside the target that suffice: attn:matmul
    api: str = ""  # the same as one line of Python
    patch: str = ""  # unified diff for the user's own source, to be read
    patch_verified: bool = False  # the step was replayed with it
    patch_note: str = ""  # why there is none, or what it changes beyond the targets
    alternatives: tuple[Alternative, ...] = ()  # the chosen one first
    why: tuple[str, ...] = ()  # why there is no cure, or why it cannot be told


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One rank's share of a gradient that the ranks add up: finite here, not finite after it."""

    param: str
    dtype: str
    limit: float  # largest value of the format
    absmax: float  # on this rank, before any communication
    n: int
    n_nonfinite: int  # elements of the ranks' sum
    at: tuple[int, ...] = ()  # the first of them, counted through the flattened gradient
    values: tuple[float, ...] = ()  # what this rank had there


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedUp:
    """The shares of all ranks, put together afterwards. Never written: made from the evidence of every rank."""

    param: str
    dtype: str
    limit: float
    absmax: float  # the largest exact sum
    shares: tuple[float, ...]  # by rank: its value where that sum is, or its largest magnitude if not is_exact
    is_exact: bool  # added element by element; otherwise only the ranks' largest magnitudes could be added


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything known about one failure."""

    format: int = FORMAT
    id: str = ""  # directory name below bundles/: step-000012-nonfinite-grad
    trigger: Trigger = "nonfinite-grad"
    step: int = 0
    microbatch: int = 0
    rank: int = 0
    world_size: int = 1
    loss: float | None = None
    loss_scale: float | None = None  # of the step in the run
    replayed_scale: float | None = None  # in the replayed gradients; None: as loss_scale
    bad_params: tuple[str, ...] = ()  # with a non-finite gradient in the run, before any clipping if that was seen
    replayed_bad_params: tuple[str, ...] = ()  # the same in the replay, where nothing clipped them
    n_params: int = 0
    clip: str = ""  # "clip_grad_norm_" if clipping spread one parameter's NaN to all
    replayed: bool = False
    reproduced: bool = False
    together: bool = False  # all ranks replayed, because the model communicates
    received: bool = False  # the bad value came from another rank: `origin` is the collective that brought it
    traced_live: bool = False  # found by live tracing of a later step, because a replay was not possible
    why_not: str = ""  # why there was no replay, or why it did not show the failure again
    forward_finite: bool = True  # loss finite
    origin: OpFacts | None = None
    leaf: TensorFacts | None = None  # the bad value was there before any op: batch, parameter or buffer
    leaf_kind: Literal["", "batch", "param", "buffer", "external"] = ""
    chips: tuple[str, ...] = ()  # "+inf ×12" of the blamed output
    indices: tuple[tuple[int, ...], ...] = ()  # first bad elements of the blamed output
    index_shape: tuple[int, ...] = ()
    samples: tuple[int, ...] = ()  # batch rows they belong to; empty: cannot tell
    samples_confirmed: bool | None = None  # replay without them was finite; None: not tried
    n_samples: int = 0  # batch size
    dataset_indices: tuple[int, ...] = ()  # of the samples, from the DataLoader; empty: not known
    is_from_loader: bool = False  # the leaf is as a DataLoader gave it
    is_handed_in: bool = False  # the leaf asks for its gradient, as what a stage of a pipeline has received does
    float64: Rerun = field(default_factory=Rerun)
    again: Rerun = field(default_factory=Rerun)
    cpu: Rerun = field(default_factory=Rerun)
    limit: float | None = None  # largest value of the output's format
    upstream_grad_zero: bool | None = None  # in backward: the incoming gradient is 0 at every bad element
    killed_in_forward: bool = False  # the bad value was masked away in forward and came back in backward
    multiplier_zero: OpFacts | None = None  # a product where the other factor is exactly 0 at every bad element
    nan_maker: OpFacts | None = None  # where an infinity of `origin` first became NaN, if another op
    killed_by: OpFacts | None = None  # for an overflow that never reached the loss: what hid it
    killed: tuple[OpFacts, ...] = ()  # non-finite values that the watched value does not descend from
    path: tuple[OpFacts, ...] = ()  # from origin to loss or gradient, at most 12, without tensors' facts
    facts: dict[str, float | str] = field(default_factory=dict)  # what a probe measured: clamp_bound, n_valid_labels
    history: tuple[tuple[int, float], ...] = ()  # (step, absmax) of the blamed site before, if recorded
    losses: tuple[tuple[int, float], ...] = ()  # (step, loss) of the steps before, loss scale taken out
    shares: tuple[Share, ...] = ()  # with several ranks, when every micro-batch is finite on this one
    added_up: AddedUp | None = None
    optimizer: dict[str, float | str | list[int]] = field(default_factory=dict)  # class, eps, eps_in_dtype
    remedies: tuple[Remedy, ...] = ()  # tried, verified ones first
    cure: Cure | None = None  # the search for the smallest float32 island; None: there was none
    healthy_steps: int = 0  # steps before this one without a failure
    bundle_files: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A cause's answer to the evidence."""

    cause: str
    confidence: Literal["proven", "likely", "possible"]
    title: str  # "the product overflowed float16"
    why: tuple[str, ...] = ()
    limit: float | None = None
    actual: float | None = None
    advice: str = ""  # what to change, when no remedy was tried or verified
