"""The vocabulary as frozen dataclasses: what crosses a folder boundary is made of these (docs/architecture.md)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta

Level = Literal["sentinel", "modules", "ops", "tensors"]
Phase = Literal["data", "forward", "loss", "backward", "grad", "comm", "optimizer", "param", "scaler"]
PHASES: tuple[Phase, ...] = get_args(Phase)
"""In the order in which a step goes through them."""
Severity = Literal["error", "warning", "note"]
Confidence = Literal["proven", "likely", "possible"]
Status = Literal["healthy", "findings", "cannot-tell"]
Count = Annotated[int, Meta(ge=0)]

LEVELS: tuple[Level, ...] = ("sentinel", "modules", "ops", "tensors")

LACKS: tuple[str, ...] = ("counts", "histogram", "extremes", "sum", "sumsq", "rough", "rounded")
"""What an imported reading may lack, beside `n_hist == 0` (zeros, subnormals and histogram are not known).

counts     of NaN and infinities: one that is not 0 is a lower bound, one that is 0 may be unseen beside another
histogram  `n_hist` is 0: nothing is known of zeros, subnormals and exponents
extremes   `min` or `max` is None because it was not written or is not finite; `absmax` is a lower bound
sum        is not known, and 0
sumsq      is not known, and 0
rough      sum and sumsq were computed in the tensor's own format: good to a few of its roundings
rounded    extremes, mean and norm were written with six decimals
"""

CAUSES: tuple[str, ...] = (
    "format-overflow", "accumulation-overflow", "loss-scale-overflow", "grad-underflow", "division-by-zero",
    "log-of-zero", "out-of-domain", "sqrt-gradient-at-zero", "pow-gradient", "inf-minus-inf", "zero-times-inf",
    "masked-gradient-trap", "fully-masked-softmax", "empty-reduction", "bad-input", "index-out-of-range",
    "bad-parameter", "optimizer-eps-underflow", "update-rounded-away", "exploding-activation", "exploding-gradient",
    "dead-gradient", "hardware-fault", "kernel-bug", "replica-drift", "missing-gradient-sync", "rng-desync",
    "config-mismatch", "init-mismatch", "precision-mismatch", "data-mismatch", "implementation-mismatch", "noise",
    "rank-lost", "collective-fault", "program-error", "uninitialised-read", "out-of-memory", "exploding-gain",
    "mode-switched", "bad-sample", "data-repeats", "data-shifted", "state-changed", "sample-leak", "future-leak",
    "padding-leak", "label-leak", "loss-misused", "labels-misplaced", "wrong-derivative", "unknown",
)  # fmt: skip
"""The closed vocabulary of causes. One that fits none is `unknown`, never a guess dressed up."""

KINDS: tuple[str, ...] = (
    "nonfinite", "overflow-risk", "underflow", "loss-scale-collapse", "spike", "exploding", "vanishing", "stagnation",
    "desync", "divergence", "hardware", "data", "config", "comm", "environment", "crash",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What is known of a tensor's values. A monoid: `summary.merge(a, b)` describes both (hypocenter.summary.merge).

    Counts are exact. `min` .. `sumsq` are over *finite* elements; with none, `min`, `max` and `absmin` are None and
    `absmax`, `sum` and `sumsq` 0, so that every field survives JSON. Complex values are seen as real and imaginary
    parts; bool and int as numbers.

    The histogram counts nonzero finite values by binary exponent floor(log2|x|): `hist[i]` belongs to the exponent
    `hist_first + i`. It may come from a strided sample: `n_hist` elements (of any kind) were looked at, and `n_zero`,
    `n_subnormal` and `absmin` are of that sample. `n_hist == n` means everything is exact.
    """

    n: int = 0
    n_nan: int = 0
    n_posinf: int = 0
    n_neginf: int = 0
    n_hist: int = 0
    n_zero: int = 0
    n_subnormal: int = 0  # in the tensor's own dtype
    min: float | None = None
    max: float | None = None
    absmin: float | None = None  # smallest nonzero magnitude
    absmax: float = 0.0  # largest finite magnitude
    sum: float = 0.0
    sumsq: float = 0.0
    hist_first: int = 0
    hist: tuple[int, ...] = ()
    sketch: tuple[float, ...] | None = None  # k * k float32, row major; see hypocenter.summary.sketch

    @property
    def n_nonfinite(self) -> int:
        """The number of NaN and infinite elements."""
        return self.n_nan + self.n_posinf + self.n_neginf


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCall:
    """One operator that the code of a module called itself, in one micro-batch."""

    module: str = ""  # path; "" of the outermost module, and of the code around it
    phase: Phase = "forward"  # or loss: code outside the modules
    op: str = ""  # aten.gelu.default
    constants: dict[str, Any] = field(default_factory=dict)  # approximate: "tanh"; numbers, flags, words, formats
    where: str = ""  # "file.py:216"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A line of the user's (or a library's) source code."""

    file: str
    line: int
    text: str = ""
    function: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coords:
    """Where a rank stands in the parallel layout; None where the axis does not exist."""

    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    cp: int | None = None
    ep: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One process that was this rank: an elastic restart makes another attempt."""

    number: int = 0
    host: str = ""
    pid: int = 0
    started: str = ""  # ISO 8601, UTC
    started_ns: int = 0  # Unix time; streams of this process carry its host and pid in their names


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """rank.json: where a rank runs and where it stands among the others."""

    format: int = 1
    rank: int = 0
    world_size: int = 1
    local_rank: int | None = None
    host: str = ""
    device: str = ""  # "cpu", "cuda:3", "npu:0"
    device_name: str = ""  # "NVIDIA H200"
    serial: str = ""  # UUID or serial number of the device
    launcher: str = ""  # torchrun, srun, deepspeed, accelerate, mpirun, ""
    coords: Coords = field(default_factory=Coords)
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)  # axis -> global ranks of this rank's group
    source: str = ""  # what told the layout: "DeviceMesh", "Megatron-Core", "DeepSpeed", "data parallel", ..., ""
    layers: dict[str, int] = field(default_factory=dict)  # module path -> the layer number it carries, if any
    attempts: tuple[Attempt, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One Summary of one site at one (step, micro-batch, rank). The rank is the directory it is stored in."""

    step: int
    microbatch: int
    phase: Phase
    site: str  # e.g. "encoder.block.1.layer.1.DenseReluDense.wo"; "loss", "grad_norm", "lr", "loss_scale" for scalars
    port: str  # in[0], in[mask], out[0], out[logits], weight, grad, grad_in[0], grad_out[0], value, ...
    order: int  # execution order within the step
    call: int = 0  # n-th call of this module within the micro-batch
    dtype: str = ""  # float16, bfloat16, float32, ... without "torch."
    shape: tuple[int, ...] = ()
    summary: Summary = field(default_factory=Summary)
    module: str = ""  # class name of the module
    names: tuple[str, ...] = ()  # all names, when a shared module or parameter has several
    op: str = ""  # at level ops: "aten.mul.Tensor"
    source: Source | None = None
    recompute: bool = False  # activation-checkpoint recompute inside backward
    replay: bool = False  # observed in a replay, not in the run itself
    literal_inf: bool = False  # its infinities come from constants that the program wrote (masks)
    digest: int | None = None  # 64 bits of the exact values here (int64); equal values have equal digests
    placement: str = ""  # over the ranks, per axis: "dp=R tp=S(0)"; R replicated, S(dim) shard, P summand, V its own
    lacks: str = ""  # words of LACKS, space separated: what the dump it was imported from does not tell
    row_digests: tuple[int, ...] = ()  # of a batch's tensor, of some rows: digest * 4096 + place in the batch
    shares: tuple[float, ...] = ()  # of a batch's tensor: of its elements (docs/format.md)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """What is known of one optimizer step (a skipped AMP step counts)."""

    step: int
    n_microbatches: int = 0
    loss: float | None = None  # mean over micro-batches, as given to backward, loss scale taken out
    grad_norm: float | None = None  # L2 before clipping, loss scale taken out
    loss_scale: float | None = None
    lr: float | None = None
    skipped: bool = False
    step_ms: float = 0.0  # wall time since the previous step
    tap_ms: float = 0.0  # wall time spent inside Hypocenter
    n_bad_grads: int = 0  # parameters with a non-finite gradient
    finding: str = ""  # id of the evidence written at this step


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """What to change, as something to apply, and whether a replay with it was finite."""

    action: str  # fp32-island, drop-samples, eps, skip-batch, ...
    targets: tuple[str, ...] = ()
    verified: Annotated[bool, Meta(description="A replay with it was finite.")] = False
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fact: what, where, limit, actual, evidence, cause. The shape of an entry of diagnosis.json."""

    code: Annotated[str, Meta(description="Of the rule: HC101.")]
    kind: Annotated[str, Meta(extra_json_schema={"enum": KINDS})]
    severity: Severity
    title: Annotated[str, Meta(description="What, in one line.")]
    step: Annotated[int, Meta(description="The optimizer step under way; a skipped one counts.")]
    microbatch: int = 0
    rank: int = 0
    coords: Coords = field(default_factory=Coords)
    phase: Phase | None = None
    site: Annotated[
        str | None,
        Meta(description="Path of the module, empty for the model itself; loss, batch, or a parameter's name."),
    ] = None
    port: str | None = None
    param: str | None = None
    samples: Annotated[
        tuple[int, ...], Meta(description="Rows of the batch that are to blame; empty: cannot tell, or all.")
    ] = ()
    dataset_indices: Annotated[
        tuple[int, ...],
        Meta(
            description="Indices of these samples in the data set, as its DataLoader drew them; empty: not known.",
            extra_json_schema={"optional": True},
        ),
    ] = ()
    op: Annotated[str | None, Meta(description="aten.mul.Tensor; in backward the forward operator.")] = None
    source: Source | None = None
    cause: Annotated[
        str,
        Meta(
            description="A name with a dot is a third party's.",
            extra_json_schema={"anyOf": [{"enum": CAUSES}, {"pattern": r"^[^.]+\..+$"}]},
        ),
    ] = "unknown"
    limit: Annotated[float | None, Meta(description="What would have been all right.")] = None
    actual: Annotated[float | None, Meta(description="What was, in the same unit.")] = None
    why: tuple[str, ...] = ()
    then: Annotated[tuple[str, ...], Meta(description="What followed from it, folded into this finding.")] = ()
    confidence: Confidence = "possible"
    remedy: Remedy | None = None
    chips: Annotated[tuple[str, ...], Meta(description="Counts of the output that went wrong: +inf ×12.")] = ()
    names: Annotated[tuple[str, ...], Meta(description="All names of a shared site.")] = ()
    bundle: Annotated[str | None, Meta(description="Path below the run directory.")] = None
    count: Annotated[int, Meta(ge=1, description="How many steps or ranks show the same.")] = 1
    ranks: Annotated[
        tuple[int, ...],
        Meta(
            description="Ranks that are not alike, where nothing tells which of them is wrong; empty: `rank` is.",
            extra_json_schema={"optional": True},
        ),
    ] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What is numerically wrong with a recorded run, causes first.

    Steps, micro-batches, ranks and samples count from 0.
    """

    schema: Literal["hypocenter.diagnosis/1"] = "hypocenter.diagnosis/1"
    run: Annotated[str, Meta(description="Name of the run directory.")] = ""
    status: Status = "healthy"
    findings: tuple[Finding, ...] = ()
    why: Annotated[tuple[str, ...], Meta(description="Why the status is cannot-tell.")] = ()
    n_steps: Count = 0
    n_ranks: Count = 0
    n_sites: Count = 0
    n_rows: Count = 0
    notes: Annotated[tuple[str, ...], Meta(description="What was cut, skipped, damaged or switched off.")] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """The dump of another tool that a run directory was made from."""

    kind: str  # msprobe, msprobe-monitor, ptdbg, ...
    path: str = ""
    version: str = ""  # of the format, or of the tool, as far as it is known
    digest: str = ""  # what its digests are: "crc32", "xor"; those of different kinds cannot be compared
    notes: tuple[str, ...] = ()  # what it does not hold, and how it was read


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """run.json: what made this recording. Written at start, rewritten at close."""

    format: int
    name: str
    command: tuple[str, ...] = ()
    folder: str = ""  # where the command was started
    started: str = ""  # ISO 8601, UTC
    ended: str | None = None
    status: Literal["running", "finished", "failed", "killed"] = "running"
    exit_code: int | None = None
    world_size: int = 1
    config: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    git: str = ""  # commit, branch, and how many files were changed since, of the folder it was started in
    host: str = ""
    warnings: tuple[str, ...] = ()
    imposed: dict[str, str] = field(default_factory=dict)  # name -> what the program was made to do, in words
    imported: Imported | None = None  # the dump of another tool that it was made from


__all__ = [
    "CAUSES", "KINDS", "LACKS", "LEVELS", "Attempt", "Confidence", "Coords", "Count", "Diagnosis", "Finding",
    "Imported", "Level", "Phase", "Place", "Reading", "Remedy", "Run", "Severity", "Source", "Status", "StepRecord",
    "Summary", "replace",
]  # fmt: skip
