"""Rules over ranks about replicas, on hand-made panels: what must be found and what must stay silent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hypocenter.detect.group_engine import GroupEngine, group_rules
from hypocenter.detect.panel import JobHistory, Panel
from hypocenter.detect.replica_rows import CLIP, GRAD, PARAM, READ, REWRITTEN, ROW_PLACES, UNWRAPPED
from hypocenter.nouns import Finding, Place, Reading, StepRecord, Summary
from hypocenter.record.schema import readings_batch

OURS = ("HC301", "HC303", "HC304", "HC305", "HC306", "HC307", "HC310")
NAMES = ("embed.weight", "norm.weight", "norm.bias", "head.weight")
SHAPES = {"embed.weight": (30, 8), "norm.weight": (8,), "norm.bias": (8,), "head.weight": (30, 8)}
Rows = dict[int, list[Reading]]


def reading(step: int, phase: str, site: str, port: str, **more: object) -> Reading:
    return Reading(step=step, microbatch=0, phase=phase, site=site, port=port, order=0, **more)  # type: ignore[arg-type]


def scalar(step: int, site: str, value: float, phase: str = "optimizer") -> Reading:
    return reading(step, phase, site, "value", summary=Summary(n=1, sum=value, sumsq=value * value, absmax=value))


def vector(name: str, step: int) -> np.ndarray:
    """The sketch of a gradient that all ranks would agree on."""
    return np.random.default_rng([step, *name.encode()]).normal(size=16)


def healthy(step: int, n_ranks: int, placement: str = "dp=R") -> Rows:
    rows: Rows = {rank: [] for rank in range(n_ranks)}
    for rank in rows:
        for number, name in enumerate(NAMES):
            known = {"placement": placement, "shape": SHAPES[name], "dtype": "float32"}
            rows[rank].append(reading(step, "param", name, PARAM, digest=1000 * step + number, **known))
            rows[rank].append(gradient(step, name, vector(name, step), placement))
    return rows


def gradient(step: int, name: str, sketch: Sequence[float] | np.ndarray, placement: str = "dp=R") -> Reading:
    numbers = tuple(float(x) for x in np.asarray(sketch, dtype=np.float32))
    summary = Summary(n=int(np.prod(SHAPES[name])), sumsq=float(np.sum(np.square(numbers))) / 16, sketch=numbers)
    return reading(step, "grad", name, GRAD, digest=hash(numbers), summary=summary, placement=placement,
                   shape=SHAPES[name], dtype="float32")  # fmt: skip


def changed(
    rows: Rows, rank: int, port: str, change: Callable[[Reading], Reading], names: Iterable[str] = NAMES
) -> Rows:
    names = tuple(names)
    mine = [change(r) if r.port == port and r.site in names else r for r in rows[rank]]
    return rows | {rank: mine}


def other(row: Reading) -> Reading:
    return replace(row, digest=(row.digest or 0) + 17)


def times(factor: float) -> Callable[[Reading], Reading]:
    return lambda row: gradient(row.step, row.site, factor * vector(row.site, row.step), row.placement)


def run(
    steps: dict[int, Rows],
    groups: dict[str, list[tuple[int, ...]]],
    records: Callable[[int, int], StepRecord] | None = None,
) -> list[Finding]:
    """The findings of a whole job."""
    n_ranks = len(next(iter(steps.values())))
    places = {
        rank: Place(rank=rank, world_size=n_ranks, device="cpu",
                    groups={axis: next(g for g in found if rank in g) for axis, found in groups.items()})
        for rank in range(n_ranks)
    }  # fmt: skip
    make = records or (lambda rank, step: StepRecord(step=step, loss=1.0, lr=0.1))
    history, found = JobHistory(), []
    engine = GroupEngine({code: rule for code, rule in group_rules().items() if code in OURS})
    for step, rows in sorted(steps.items()):
        flat = [(rank, row) for rank in rows for row in rows[rank]]
        table = pa.Table.from_batches([readings_batch([row for _, row in flat])])
        table = table.append_column("rank", pa.array([rank for rank, _ in flat], pa.int32()))
        found += engine.feed(
            Panel(
                step=step, table=table, records={rank: make(rank, step) for rank in rows}, places=places,
                ranks=tuple(rows), last_steps=dict.fromkeys(rows, max(steps)), history=history,
            )
        )  # fmt: skip
    return found


DP2, DP4 = {"dp": [(0, 1)]}, {"dp": [(0, 1, 2, 3)]}


def test_healthy_replicas_are_silent() -> None:
    assert run({step: healthy(step, 4) for step in (0, 10, 20)}, DP4) == []


def test_without_a_known_axis_nothing_is_said() -> None:
    rows = changed(healthy(10, 2), 1, PARAM, other)

    assert run({0: healthy(0, 2), 10: rows}, {}) == []


@pytest.mark.parametrize("placement", ["", "dp=S(0)", "dp=V", "tp=R", "dp=P"])
def test_what_is_no_replica_may_differ(placement: str) -> None:
    steps = {s: changed(healthy(s, 2, placement), 1, PARAM, other) for s in (0, 10)}

    assert run(steps, DP2) == []


def test_the_odd_rank_of_four_is_named() -> None:
    rows = changed(healthy(10, 4), 2, PARAM, other, ["norm.bias"])

    (finding,) = run({0: healthy(0, 4), 10: rows, 20: healthy(20, 4)}, DP4)

    assert (finding.code, finding.rank, finding.site, finding.step) == ("HC301", 2, "norm.bias", 10)
    assert (finding.cause, finding.confidence) == ("hardware-fault", "possible")
    assert "rank 2 differs from the others" in finding.why[0]


def test_with_two_ranks_nobody_can_tell() -> None:
    rows = changed(healthy(10, 2), 1, PARAM, other)

    (finding,) = run({0: healthy(0, 2), 10: rows}, DP2)

    assert (finding.cause, finding.ranks) == ("replica-drift", (0, 1))
    assert "nothing here tells which" in finding.why[0]
    assert finding.remedy is not None
    assert "checkpoint from before this step" in finding.remedy.text


def test_different_from_the_start() -> None:
    steps = {s: changed(healthy(s, 4), 3, PARAM, other) for s in (0, 10)}

    (finding,) = run(steps, DP4)

    assert (finding.code, finding.cause, finding.step, finding.rank) == ("HC301", "init-mismatch", 0, 3)
    assert finding.ranks == ()
    assert finding.remedy is not None
    assert "before this step" not in finding.remedy.text, "there was none"


def test_unmarked_replicas_that_began_equal() -> None:
    rows = changed(healthy(10, 2, ""), 1, GRAD, lambda r: gradient(10, r.site, -vector(r.site, 3), ""))

    (finding,) = run({0: healthy(0, 2, ""), 10: rows}, DP2)

    assert (finding.code, finding.site, finding.step) == ("HC301", "embed.weight", 10)


def test_unmarked_parameters_that_share_their_gradients_are_replicas_whatever_they_began_with() -> None:
    names = NAMES[:3]
    steps = {s: changed(healthy(s, 2, ""), 1, PARAM, other, names) for s in (0, 10)}

    (finding,) = run(steps, {})

    assert (finding.code, finding.cause, finding.step) == ("HC301", "init-mismatch", 0)


@pytest.mark.parametrize(("is_added_up", "is_own"), [(True, True), (False, True), (True, False)])
def test_gradients_of_experts_that_are_added_up(is_added_up: bool, is_own: bool) -> None:
    """Or each rank keeps its own; or all ranks have the same from the start, as of a bias that all of them add."""
    steps = {}
    for step in (0, 10):
        rows = changed(healthy(step, 2, ""), 1, PARAM, other, ["head.weight"])
        for rank in rows:
            local = [replace(r, port="grad_local") for r in rows[rank] if r.port == GRAD]
            rows[rank] += [replace(r, digest=rank * is_own) for r in local]
        if not is_added_up:
            own = lambda r: gradient(r.step, r.site, vector(r.site, 100 + r.step), "")  # noqa: E731
            rows = changed(rows, 1, GRAD, own, ["head.weight"])
        steps[step] = rows

    found = run(steps, {})

    assert [(f.code, f.param, f.step) for f in found] == [("HC301", "head.weight", 0)] * (is_added_up and is_own)


def own(row: Reading) -> Reading:
    """A gradient that no other rank has."""
    return gradient(row.step, row.site, vector(row.site, 100 + row.step), row.placement)


SPREAD = Summary(n=240, min=-1.0, max=1.0)


@pytest.mark.parametrize(
    ("has_parts", "severity"),
    [(True, "warning"), (False, "note")],  # where nothing differs, parts may have been made under one seed
)
def test_copies_beside_parts_of_a_layer_are_known_by_their_content(has_parts: bool, severity: str) -> None:
    """No mark tells that ranks of a group hold parts; but some matrices began otherwise on each, and one did not."""
    steps = {}
    for step in (0, 10):
        rows = healthy(step, 2, "" if has_parts else "tp=R")
        if has_parts:
            rows = changed(changed(rows, 1, PARAM, other, ["head.weight"]), 1, GRAD, own, ["head.weight"])
        else:
            rows = {r: [replace(e, placement="" if e.site != "head.weight" else "tp=R") for e in rows[r]] for r in rows}
        rows = {r: [replace(e, summary=SPREAD) if e.port == PARAM else e for e in rows[r]] for r in rows}
        steps[step] = changed(rows, 1, GRAD, own, ["embed.weight"])

    found = [f for f in run(steps, {"tp": [(0, 1)]}) if f.code == "HC301"]

    assert [(f.param, f.step, f.severity) for f in found] == [("embed.weight", 0, severity)]


def test_unmarked_shards_have_gradients_of_their_own() -> None:
    steps = {}
    for step in (0, 10):
        rows = changed(healthy(step, 2, ""), 1, PARAM, other)
        steps[step] = changed(rows, 1, GRAD, lambda r: gradient(r.step, r.site, vector(r.site, 100 + r.step), ""))

    assert run(steps, {}) == []


def left_out(names: list[str], least: float) -> dict[int, Rows]:
    """All begin alike, with values from `least` to 0; then these go apart."""
    first = healthy(0, 2, "")
    for rank in first:
        first = changed(first, rank, PARAM, lambda r: replace(r, summary=Summary(n=r.summary.n, min=least, max=0.0)))
    return {0: first, **{s: changed(healthy(s, 2, ""), 1, PARAM, other, names) for s in (10, 20)}}


def test_an_unmarked_parameter_that_is_left_out_beside_another_of_its_module() -> None:
    (finding,) = run(left_out(["norm.bias"], -1.0), {})

    assert (finding.code, finding.cause, finding.site) == ("HC301", "missing-gradient-sync", "norm.bias")


def test_an_unmarked_parameter_that_began_as_zeros_everywhere() -> None:
    """A part of one that is cut over the ranks, as of LoRA."""
    assert run(left_out(["norm.bias"], 0.0), {}) == []


def test_an_unmarked_vector_of_zeros_where_all_random_parameters_are_replicas() -> None:
    """Nothing of this model is cut over the ranks."""
    steps = left_out(["norm.bias"], 0.0)
    steps[0] = {
        rank: [replace(r, summary=replace(r.summary, min=-1.0)) if r.site == "embed.weight" else r for r in rows]
        for rank, rows in steps[0].items()
    }

    (finding,) = run(steps, {})

    assert (finding.code, finding.site) == ("HC301", "norm.bias")


@pytest.mark.parametrize(
    ("losses", "draws", "data", "told"),
    [
        ([1.0, 1.0], [7, 7], [5, 5], ("HC301", 0, "embed.weight")),  # a backward that does not add up
        ([1.0, 1.1], [7, 8], [5, 5], ("HC304", 0, "rng.cpu")),
        ([1.0, 1.1], [7, 8], [5, 6], ("HC301", 20, "norm.weight")),  # data may be why
        ([1.0, 1.1], [7, 7], [5, 5], ("HC301", 20, "norm.weight")),
    ],
)
def test_where_copies_that_nobody_reduces_part_first(
    losses: list[float], draws: list[int], data: list[int], told: tuple[str, int, str]
) -> None:
    """The embedding does so at the first step; others, of the same gradient then, when they are given other inputs."""
    steps = left_out(["embed.weight"], -1.0)
    steps[0] = changed(steps[0], 1, GRAD, lambda r: gradient(0, r.site, vector(r.site, 99), ""), ["embed.weight"])
    steps[20] = changed(steps[20], 1, PARAM, other)
    for rows in (states(0, draws), batches(0, data)):
        steps[0] = {rank: [*steps[0][rank], *rows[rank]] for rank in rows}
    make = lambda rank, step: StepRecord(step=step, loss=losses[rank], lr=0.1)  # noqa: E731

    (finding,) = run(steps, {}, make)

    assert (finding.code, finding.step, finding.site) == told


@pytest.mark.parametrize(
    ("change", "is_told"),
    [
        ({}, True),
        ({"data": [5, 6]}, False),  # no sequence that they share
        ({"reduced": ()}, False),  # nothing is added up by hand
        ({"reduced": NAMES}, False),  # norms are
        ({"width": 4}, False),  # of channels that the ranks have shared out
        ({"kind": "Linear"}, False),
        ({"parted": ("norm.weight",)}, False),  # not all of them, as of experts
    ],
)
def test_norms_of_a_shared_sequence_whose_gradients_are_not_added_up(change: dict[str, Any], is_told: bool) -> None:
    given: dict[str, Any] = {
        "data": [5, 5], "reduced": ("embed.weight", "head.weight"), "width": 8, "kind": "LayerNorm",
        "parted": ("norm.weight", "norm.bias"),
    }  # fmt: skip
    given |= change
    steps = {0: healthy(0, 2, ""), 10: changed(healthy(10, 2, ""), 1, PARAM, other, given["parted"])}
    for rows in steps.values():
        for rank, of_rank in rows.items():
            rows[rank] = [
                replace(r, module=given["kind"], shape=(given["width"],)) if r.site.startswith("norm") else r
                for r in of_rank
            ]
            local = [replace(r, port="grad_local") for r in of_rank if r.port == GRAD]
            rows[rank] += [replace(r, digest=17 + rank) if r.site in given["reduced"] else r for r in local]
    for step in steps:
        data = batches(step, given["data"])
        steps[step] = {rank: [*rows, *data[rank]] for rank, rows in steps[step].items()}

    found = [f for f in run(steps, {}) if "norm" in f.site]

    assert [(f.code, f.cause, f.step) for f in found] == [("HC301", "missing-gradient-sync", 0)] * is_told


def test_an_unmarked_module_of_each_rank_is_meant_so() -> None:
    """An expert, which began alike everywhere."""
    assert run(left_out(["norm.bias", "norm.weight"], -1.0), {}) == []


def test_unmarked_vectors_alone_are_no_evidence_of_replicas() -> None:
    """Norms and biases begin as ones and zeros on every rank, whatever they are."""
    steps = {0: healthy(0, 2, ""), 10: changed(healthy(10, 2, ""), 1, PARAM, other)}
    steps = {s: {r: [x for x in rows if len(x.shape) < 2] for r, rows in of.items()} for s, of in steps.items()}

    assert run(steps, DP2) == []


@pytest.mark.parametrize("has_wrapper", [True, False])
def test_gradients_that_differ_on_each_rank_are_not_reduced(has_wrapper: bool) -> None:
    rows = healthy(10, 4)
    for rank in range(4):
        rows = changed(rows, rank, GRAD, lambda r, rank=rank: gradient(10, r.site, vector(r.site, 100 + rank)))

    rows[0] = [*rows[0], *([scalar(10, UNWRAPPED, 0.0, "param")] if has_wrapper else [])]

    (finding,) = run({0: healthy(0, 4), 10: rows, 20: rows | {}}, DP4)

    assert (finding.code, finding.cause, finding.step) == ("HC301", "missing-gradient-sync", 10)
    assert (finding.confidence, finding.ranks) == ("likely", (0, 1, 2, 3))
    assert finding.remedy is not None
    assert ("DDP wrapper" in finding.remedy.text) == has_wrapper


def test_gradients_that_are_the_local_ones_prove_it() -> None:
    rows = healthy(10, 2)
    for rank in range(2):
        rows = changed(rows, rank, GRAD, lambda r, rank=rank: gradient(10, r.site, vector(r.site, 100 + rank)))
        rows[rank] += [replace(r, port="grad_local") for r in rows[rank] if r.port == GRAD]

    (finding,) = run({0: healthy(0, 2), 10: rows}, DP2)

    assert (finding.code, finding.confidence) == ("HC301", "proven")


def test_averaging_between_updates_is_a_note() -> None:
    steps = {0: healthy(0, 2)}
    for step in (10, 20):
        rows = healthy(step, 2)
        rows = changed(rows, 1, GRAD, lambda r, s=step: gradient(s, r.site, vector(r.site, 100 + s)))
        steps[step] = {
            r: [*rows[r], scalar(step, REWRITTEN, 2.0, "param"), scalar(step, CLIP, 1.0 - r / 2)] for r in rows
        }

    (finding,) = run(steps, DP2)

    assert (finding.code, finding.severity) == ("HC301", "note")
    assert (finding.cause, finding.confidence) == ("unknown", "possible"), "it may be meant"


def test_what_is_written_to_replicas_that_share_their_gradients_is_no_averaging() -> None:
    """As an average that rank 0 alone has kept, loaded on all ranks."""
    steps = {step: healthy(step, 2) for step in (0, 10, 20, 30)}
    for step in (20, 30):
        rows = changed(steps[step], 1, PARAM, other)
        steps[step] = {r: [*rows[r], scalar(step, REWRITTEN, 2.0, "param")] for r in rows}

    (finding,) = run(steps, DP2)

    assert (finding.code, finding.severity, finding.step) == ("HC301", "error", 20)
    assert "between two updates the parameters were changed on ranks 0, 1, not alike" in finding.why


def test_one_element_is_a_flipped_bit() -> None:
    signs = np.array([1, -1, 1, 1] * 4)
    flip = lambda r: gradient(10, r.site, vector(r.site, 10) + 0.7 * signs)  # noqa: E731
    rows = changed(healthy(10, 2), 1, GRAD, flip, ["head.weight"])

    (finding,) = run({0: healthy(0, 2), 10: rows}, DP2)

    assert (finding.code, finding.cause, finding.site, finding.confidence) == (
        "HC301", "hardware-fault", "head.weight", "likely",
    )  # fmt: skip


def test_rounding_is_silent_and_its_drift_a_note() -> None:
    rows = changed(healthy(10, 2), 1, GRAD, times(1 + 1e-7))
    only_gradients = {0: healthy(0, 2), 10: rows}

    assert run(only_gradients, DP2) == []
    (finding,) = run(only_gradients | {20: changed(healthy(20, 2), 1, PARAM, other)}, DP2)
    assert (finding.code, finding.severity, finding.cause) == ("HC301", "note", "noise")


@pytest.mark.parametrize("axis", ["dp", "tp"])
def test_one_factor_for_all_is_clipping(axis: str) -> None:
    placement = f"{axis}=R"
    rows = changed(healthy(10, 2, placement), 1, GRAD, times(0.25))
    rows = {r: [*rows[r], scalar(10, CLIP, (1.0, 0.25)[r])] for r in rows}

    (finding,) = run({0: healthy(0, 2, placement), 10: rows}, {axis: [(0, 1)]})

    assert (finding.code, finding.confidence, finding.step) == ("HC303", "proven", 10)
    assert (finding.limit, finding.actual) == (0.25, 1.0)


def test_clipping_of_shards_and_of_stages() -> None:
    steps = {s: {r: [scalar(s, CLIP, 0.5 if r else 0.07)] for r in range(2)} for s in (0, 1)}

    (finding,) = run(steps, DP2)

    assert (finding.code, finding.step) == ("HC303", 0)
    assert run(steps, {"pp": [(0, 1)]}) == []


@pytest.mark.parametrize(
    ("spreads", "step", "why"),
    [
        ({0: 1.005, 10: 1.1}, 0, "they differ by more than rounding from step 0 on"),
        ({0: 1.0, 10: 1.1}, 10, "it began between steps 0 and 10: at step 0 they are alike"),
        ({0: 1.005, 10: 1.0001, 20: 1.1}, 20, "it began between steps 10 and 20: at step 10 they are alike"),
    ],
)
def test_clipping_of_shards_began_where_it_was_more_than_rounding(
    spreads: dict[int, float], step: int, why: str
) -> None:
    steps = {s: {r: [scalar(s, CLIP, 0.5 * spread**r)] for r in range(2)} for s, spread in spreads.items()}

    (finding,) = run(steps, DP2)

    assert (finding.code, finding.step, finding.ranks) == ("HC303", step, (0, 1))
    assert why in finding.why


def test_clipping_within_rounding_is_silent() -> None:
    steps = {s: {r: [scalar(s, CLIP, 0.5 * (1 + 1e-4 * r))] for r in range(2)} for s in (0, 1)}

    assert run(steps, DP2) == []


def states(step: int, digests: Sequence[int], stream: str = "rng.cpu") -> Rows:
    return {r: [reading(step, "data", stream, "state", digest=d)] for r, d in enumerate(digests)}


def test_random_streams_over_tensor_parallel_ranks() -> None:
    steps = {0: states(0, [1, 1, 1]), 10: states(10, [2, 5, 2]), 20: states(20, [3, 6, 3])}
    loss = lambda rank, step: StepRecord(step=step, loss=1.0 + (rank == 1) * (step >= 10))  # noqa: E731

    (finding,) = run(steps, {"tp": [(0, 1, 2)]}, loss)

    assert (finding.code, finding.rank, finding.step, finding.severity) == ("HC304", 1, 10, "error")


@pytest.mark.parametrize(
    ("axis", "stream"), [("dp", "rng.cpu"), ("pp", "rng.cpu"), ("tp", "rng.python"), ("tp", "rng.numpy")]
)
def test_random_streams_that_may_differ(axis: str, stream: str) -> None:
    steps = {0: states(0, [1, 1], stream), 10: states(10, [2, 5], stream)}

    assert run(steps, {axis: [(0, 1)]}) == []


def test_the_cpu_stream_does_not_count_beside_a_device() -> None:
    both = lambda s, a, b: {r: states(s, a)[r] + states(s, b, "rng.cuda")[r] for r in range(2)}  # noqa: E731

    assert run({0: both(0, [1, 1], [7, 7]), 10: both(10, [2, 5], [8, 8])}, {"tp": [(0, 1)]}) == []


def test_streams_that_always_differed_and_harmless_ones() -> None:
    tp = {"tp": [(0, 1)]}

    assert run({0: states(0, [1, 9]), 10: states(10, [2, 5])}, tp) == []
    (finding,) = run({0: states(0, [1, 1]), 10: states(10, [2, 5])}, tp)
    assert finding.severity == "note"  # the loss is the same on both after it


def batches(step: int, digests: Sequence[int], dtype: str = "int64", argument: str = "in[0]") -> Rows:
    known = {"shape": (4, 16), "dtype": dtype}
    return {r: [reading(step, "data", f"batch.{argument}", "digest", digest=d, **known)] for r, d in enumerate(digests)}


def test_shared_batches() -> None:
    (finding,) = run({s: batches(s, [s, s]) for s in (0, 1, 2, 10)}, DP2)

    assert (finding.code, finding.severity, finding.cause) == ("HC305", "warning", "data-mismatch")


@pytest.mark.parametrize(("second_state", "second_loss", "is_told"), [(1, 1.5, False), (2, 1.5, True), (1, 1.0, True)])
def test_equal_draws_that_come_to_other_losses_are_not_all_that_ranks_were_given(
    second_state: int, second_loss: float, *, is_told: bool
) -> None:
    """A generator's noise under one seed; its critic is called with each rank's own data, and updated first."""
    steps = {}
    for s in (0, 1, 2):
        noise, drawn = batches(s, [s, s], "float32"), states(s, [s, s * second_state + second_state - 1])
        losses = [
            [scalar(s, "loss", of_critic, "loss"), scalar(s, "loss", 2.0, "loss")] for of_critic in (1.0, second_loss)
        ]
        steps[s] = {rank: noise[rank] + drawn[rank] + losses[rank] for rank in (0, 1)}

    assert [finding.code for finding in run(steps, DP2)] == ["HC305"] * is_told


def test_batches_that_are_equal_by_chance_or_on_purpose() -> None:
    padding = {s: batches(s, [s, s if s == 2 else -s - 1]) for s in (0, 1, 2)}
    few = {s: batches(s, [s, s]) for s in (0, 1)}
    mask_only = {
        s: {r: batches(s, [s, -s - 1])[r] + batches(s, [7, 7], argument="mask")[r] for r in (0, 1)} for s in (0, 1, 2)
    }

    assert run(padding, DP2) == run(few, DP2) == run(mask_only, DP2) == []
    (finding,) = run({s: batches(s, [5, 5]) for s in (0, 1, 2)}, DP2)
    assert finding.severity == "note"


def noisy(step: int, drawn: Sequence[int], state: Sequence[int]) -> Rows:
    """Data of each rank's own, and beside it what was drawn in these states."""
    data, noise = batches(step, [2 * step, 2 * step + 1]), batches(step, drawn, argument="t")
    generators = states(step, state)
    return {r: data[r] + noise[r] + generators[r] for r in (0, 1)}


def test_draws_that_ranks_have_in_common() -> None:
    (finding,) = run({s: noisy(s, [90 + s] * 2, [s, s]) for s in (0, 1, 2, 10)}, DP2)

    assert (finding.code, finding.severity, finding.site) == ("HC305", "note", "batch.t")


@pytest.mark.parametrize(
    "steps",
    [
        {s: noisy(s, [90 + s, 190 + s], [s, s]) for s in (0, 1, 2)},
        {s: noisy(s, [90 + s] * 2, [s, 50 + s]) for s in (0, 1, 2)},
        {s: noisy(s, [90] * 2, [s, s]) for s in (0, 1, 2)},
        {s: noisy(s, [90 + s] * 2, [s, s]) for s in (0, 1)},
        {s: noisy(s, [90 + s, 90 + s + (s == 2)], [s, s]) for s in (0, 1, 2)},
    ],
    ids=["each has its own", "generators differ", "positions", "two steps", "alike by chance"],
)
def test_what_ranks_may_have_in_common(steps: dict[int, Rows]) -> None:
    assert run(steps, DP2) == []


def rows_of(step: int, of_rank: list[list[int]]) -> Rows:
    """Batches whose rows have these digests."""
    found = batches(step, [1000 + step * 10 + rank for rank in range(len(of_rank))])
    for rank, digests in enumerate(of_rank):
        packed = tuple(digest * ROW_PLACES + place for place, digest in enumerate(digests))
        found[rank] = [replace(row, row_digests=packed, shape=(len(packed), 8)) for row in found[rank]]
    return found


def order(seed: int, first: int = 1, n: int = 64) -> list[int]:
    return [int(each) + first for each in np.random.default_rng(seed).permutation(n)]


def test_ranks_that_go_through_the_same_samples_in_orders_of_their_own() -> None:
    same = {s: rows_of(s, [order(0)[8 * s : 8 * s + 8], order(1)[8 * s : 8 * s + 8]]) for s in range(8)}

    (finding,) = run(same, DP2)

    assert (finding.code, finding.severity) == ("HC305", "warning")
    assert "came on more than one of them" in finding.why[0]


@pytest.mark.parametrize("since", [0, 2], ids=["from the first pass on", "from the third on"])
def test_ranks_that_take_their_parts_of_orders_of_their_own(since: int) -> None:
    """Each second sample of an order that is drawn by another seed on each rank: a third comes on both of two."""
    steps = {}
    for s in range(32):  # four passes of eight steps
        at_pass, at = divmod(s, 8)
        orders = [order(10 * at_pass + rank * (at_pass >= since), n=128)[rank::2] for rank in (0, 1)]
        steps[s] = rows_of(s, [each[8 * at : 8 * at + 8] for each in orders])

    (finding,) = run(steps, DP2)

    assert (finding.code, finding.severity, finding.step) == ("HC305", "warning", 8 * since)
    assert any(f"{share}% of the samples" in finding.title for share in range(25, 45))  # not of several passes together


def test_ranks_that_share_the_data_out_may_swap_them_in_later_passes() -> None:
    halves = {s: rows_of(s, [order(s // 8, 1 + 64 * ((s // 8) % 2))[8 * (s % 8) : 8 * (s % 8) + 8],
                             order(s // 8, 65 - 64 * ((s // 8) % 2))[8 * (s % 8) : 8 * (s % 8) + 8]])
              for s in range(32)}  # fmt: skip
    padded = {s: rows_of(s, [order(0)[8 * s : 8 * s + 8], order(1, 100)[8 * s : 8 * s + 8]]) for s in range(8)}
    padded[8] = rows_of(8, [order(1, 100)[:8], order(1, 200)[:8]])
    few = {s: rows_of(s, [list(np.random.default_rng([s, r]).integers(1, 20, 8)) for r in (0, 1)]) for s in range(8)}

    assert run(halves, DP2) == run(padded, DP2) == run(few, DP2) == []


def test_ranks_that_deal_the_data_out_anew_in_each_pass_of_which_a_part_is_seen() -> None:
    dealt = {}
    for s in range(32):  # four passes; the second half of each batch goes by unseen
        of_step = order(s // 8, n=128)[16 * (s % 8) : 16 * (s % 8) + 16]
        dealt[s] = rows_of(s, [of_step[:4], of_step[8:12]])
    drawn = {s: rows_of(s, [list(np.random.default_rng([s, r]).integers(1, 65, 8)) for r in (0, 1)]) for s in range(24)}

    assert run(dealt, DP2) == run(drawn, DP2) == []


def test_rows_of_noise_that_the_same_seed_makes_on_all_ranks_are_no_data() -> None:
    steps = {s: rows_of(s, [order(0)[8 * s : 8 * s + 8]] * 2) for s in range(8)}
    for rank in (0, 1):
        whole = replace(steps[0][rank][0], digest=7)
        steps[0][rank] = [whole, states(0, [1, 1])[rank][0], scalar(0, "loss", 1.0 + rank, "loss")]

    assert run(steps, DP2) == []


def test_tensor_parallel_ranks_need_the_same_tokens() -> None:
    tp = {"tp": [(0, 1)]}
    steps = {s: batches(s, [s, -s - 1]) for s in (0, 1, 2)}

    (finding,) = run(steps, tp)

    assert (finding.code, finding.severity, finding.site) == ("HC305", "error", "batch.in[0]")
    assert run({s: batches(s, [s, -s - 1], "float32") for s in (0, 1, 2)}, tp) == []  # parts of a sequence
    assert run({s: batches(s, [s, s]) for s in (0, 1, 2)}, tp) == []


@pytest.mark.parametrize(
    ("is_off", "labels", "step"),
    [
        (lambda step: True, 0, 0),
        (lambda step: step >= 2, 0, 2),
        (lambda step: step == 3, 0, None),  # once
        (lambda step: True, 1, None),  # labels were cut to parts
    ],
)
def test_tensor_parallel_ranks_come_to_the_same_loss(
    is_off: Callable[[int], bool], labels: int, step: int | None
) -> None:
    loss = lambda rank, at: StepRecord(step=at, loss=1.0 + 0.01 * rank * is_off(at), lr=0.1)  # noqa: E731
    steps = {}
    for at in range(6):
        tokens, of_loss = batches(at, [at, at]), batches(at, [at, at - labels], argument="loss[0]")
        steps[at] = {rank: tokens[rank] + of_loss[rank] for rank in (0, 1)}

    found = run(steps, {"tp": [(0, 1)]}, loss)

    assert [(f.code, f.step) for f in found] == ([] if step is None else [("HC310", step)])
    assert "HC310" not in {f.code for f in run(steps, DP2, loss)}


@pytest.mark.parametrize(
    ("are_added_up", "placement", "severity"),
    [(True, "", "note"), (False, "", "warning"), (True, "tp=S(0)", "note"), (True, "tp=R", "warning")],
)
def test_losses_of_classes_that_each_rank_alone_has_weights_of(
    are_added_up: bool, placement: str, severity: str
) -> None:
    """Where marks tell parts from copies, what differs and has none is no part."""
    loss = lambda rank, at: StepRecord(step=at, loss=1.0 + 0.01 * rank, lr=0.1)  # noqa: E731
    steps = {}
    for at in range(6):
        given = batches(at, [at, at])
        rows = changed(healthy(at, 2, ""), 1, PARAM, other, NAMES if at and not are_added_up else NAMES[3:])
        if placement:
            named = NAMES[:1] if placement == "tp=R" else NAMES[3:]
            for rank in (0, 1):
                rows = changed(rows, rank, PARAM, lambda row: replace(row, placement=placement), named)
        steps[at] = {rank: given[rank] + [row for row in rows[rank] if row.port == PARAM] for rank in (0, 1)}

    found = [f for f in run(steps, {"tp": [(0, 1)]}, loss) if f.code == "HC310"]

    assert [each.severity for each in found] == [severity]


def test_losses_of_parts_of_a_sequence_may_differ() -> None:
    loss = lambda rank, at: StepRecord(step=at, loss=1.0 + 0.01 * rank, lr=0.1)  # noqa: E731

    assert run({at: batches(at, [at, -at - 1], "float32") for at in range(6)}, {"tp": [(0, 1)]}, loss) == []


@pytest.mark.parametrize(
    ("wrong", "site"),
    [({"lr": 0.2}, "lr"), ({"skipped": True}, "skipped"), ({"loss_scale": 8.0}, "loss_scale")],
)
def test_uneven_steps(wrong: dict[str, float], site: str) -> None:
    record = StepRecord(step=0, loss=1.0, lr=0.1, loss_scale=16.0)
    make = lambda rank, step: replace(record, step=step, **(wrong if rank and step == 1 else {}))  # noqa: E731

    (finding,) = run({s: healthy(s, 2) for s in (0, 1, 2)}, DP2, make)

    assert (finding.code, finding.step, finding.site) == ("HC306", 1, site)


@pytest.mark.parametrize("are_copies", [True, False])
def test_a_skip_on_one_rank_of_a_job_that_averages_by_hand(are_copies: bool) -> None:
    make = lambda rank, step: StepRecord(step=step, loss=1.0, lr=0.1, skipped=rank == 1 and step == 15)  # noqa: E731
    steps = {s: healthy(s, 2, "") for s in (0, 10, 15, 20)}
    steps[20] = changed(steps[20], 1, PARAM, other)
    if not are_copies:  # stages of a pipeline
        steps = {s: changed(healthy(s, 2, ""), 1, PARAM, other) for s in steps}
        own = lambda row: gradient(row.step, row.site, vector(row.site, row.step + 100), "")  # noqa: E731
        steps = {s: changed(rows, 1, GRAD, own) for s, rows in steps.items()}

    found = run(steps, {}, make)

    assert [(each.code, each.step, each.rank) for each in found] == [("HC306", 15, 1)] * are_copies


def test_shared_batches_of_a_job_that_averages_by_hand() -> None:
    steps = {s: batches(s, [s, s]) for s in (0, 10, 20)}
    for step, rows in steps.items():
        for rank, more in healthy(step, 2, "").items():
            local = [replace(r, port="grad_local") for r in more if r.port == GRAD]
            rows[rank] += [*more, *local]
    some = {s: {r: rows[:-1] for r, rows in of.items()} for s, of in steps.items()}  # one is not reduced
    parts = {s: changed(of, 1, "grad_local", other) for s, of in steps.items()}  # each takes a part of the sequence

    (finding,) = run(steps, {})

    assert (finding.code, finding.severity, finding.cause) == ("HC305", "warning", "data-mismatch")
    assert run(some, {}) == run(parts, {}) == []


def stages(
    step: int,
    first: int,
    last: int,
    names: tuple[str, str] = ("embedding.weight", "lm_head.weight"),
    grads: bool = True,
) -> Rows:
    rows: Rows = {}
    for rank, (name, digest) in enumerate(zip(names, (first, last), strict=True)):
        rows[rank] = [reading(step, "param", name, PARAM, digest=digest, shape=(30, 8))]
        if grads:
            rows[rank].append(reading(step, "grad", name, GRAD, digest=digest, shape=(30, 8)))
    return rows


def test_tied_copies_over_stages() -> None:
    (finding,) = run({0: stages(0, 1, 1), 10: stages(10, 2, 3)}, {"pp": [(0, 1)]})

    assert (finding.code, finding.step, finding.param) == ("HC307", 10, "lm_head.weight")


@pytest.mark.parametrize("n_shared", [0, 3])
def test_tied_copies_where_nothing_tells_the_groups(n_shared: int) -> None:
    """Copies are known by their bits; ranks that hold most other matrices alike do not hold parts of one model."""
    steps = {0: stages(0, 1, 1), 10: stages(10, 2, 3)}
    for rank, rows in steps[0].items():
        for n in range(4):
            digest = 100 + n if n < n_shared else 10 * rank + n
            rows.append(reading(0, "param", f"block.{n}.weight", PARAM, digest=digest, shape=(8, 8)))

    found = [(f.code, f.severity, f.param) for f in run(steps, {}) if f.code == "HC307"]

    assert found == ([("HC307", "warning", "lm_head.weight")] if not n_shared else [])


def test_untied_or_unused_copies_are_silent() -> None:
    pp = {"pp": [(0, 1)]}
    same_seed = {
        0: stages(0, 1, 1, ("block.0.up.weight", "block.9.up.weight")),
        10: stages(10, 2, 3, ("block.0.up.weight", "block.9.up.weight")),
    }

    assert run({0: stages(0, 1, 5), 10: stages(10, 2, 3)}, pp) == []
    assert run({0: stages(0, 1, 1, grads=False), 10: stages(10, 2, 3, grads=False)}, pp) == []
    assert run(same_seed, pp) == []
    assert run({0: stages(0, 1, 1), 10: stages(10, 2, 2)}, pp) == []


@pytest.mark.parametrize("skipped", [True, False])
def test_values_that_are_not_finite_are_not_compared(skipped: bool) -> None:
    bad = lambda r: replace(other(r), summary=Summary(n=8, n_nan=8))  # noqa: E731
    steps = {0: healthy(0, 2), 10: changed(healthy(10, 2), 1, GRAD, bad), 20: healthy(20, 2)}
    steps[20] = steps[20] if skipped else changed(steps[20], 1, PARAM, other)
    make = lambda rank, step: StepRecord(step=step, loss=1.0, n_bad_grads=step == 10, skipped=skipped and step == 10)  # noqa: E731

    assert run(steps, DP2, make) == []


def test_plain_parameters_beside_tensor_parallel_ones() -> None:
    """What torch's tensor parallelism leaves as it is, is the same on all ranks; by hand anything goes."""
    tp = {"tp": [(0, 1)]}

    def job(placement_of_head: str, of_others: str = "") -> dict[int, Rows]:
        steps = {0: healthy(0, 2, of_others), 10: changed(healthy(10, 2, of_others), 1, PARAM, other, NAMES[:3])}
        place = lambda r: replace(r, placement=placement_of_head)  # noqa: E731
        return {
            s: {rank: [place(r) if r.site == "head.weight" else r for r in of[rank]] for rank in of}
            for s, of in steps.items()
        }

    (finding,) = run(job("tp=S(0)"), tp)
    assert (finding.code, finding.site, finding.severity) == ("HC301", "embed.weight", "note")
    assert run(job(""), tp) == []
    assert run(job("tp=S(0)", "dp=V"), tp) == []


def read_at(step: int, *digests: int | None) -> Rows:
    """Healthy copies at a step, at which the losses of ranks are made of a teacher with these digests."""
    rows = healthy(step, len(digests))
    for rank, digest in enumerate(digests):
        if digest is not None:
            rows[rank].append(reading(step, "param", "teacher.weight", READ, digest=digest, shape=(8,)))
    return rows


def test_a_teacher_that_stands_still_on_some_ranks_is_told() -> None:
    steps = {step: read_at(step, 1 + step, 1, 1 + step, 1) for step in range(4)}

    (finding,) = run(steps, DP4)

    assert (finding.code, finding.severity, finding.step, finding.ranks) == ("HC301", "warning", 1, (1, 3))
    assert finding.title == "teacher.weight stands still on ranks 1, 3, and moves on ranks 0, 2"


@pytest.mark.parametrize(
    "steps",
    [
        {step: read_at(step, 1 + step, 1 + step) for step in range(6)},  # moves on both
        {step: read_at(step, 1, 1) for step in range(6)},
        {step: read_at(step, 1 + step, 11 + step) for step in range(6)},  # began apart
        {step: read_at(step, 1 + step, 1 if step < 4 else 1 + step) for step in range(6)},  # sent from time to time
        {step: read_at(step, 1 + step, 1 + 7 * step) for step in range(6)},  # each has its own
        {step: read_at(step, 1 + min(step, 2), 1) for step in range(6)},  # moved twice
        {step: read_at(step, 1 + step, None if step == 3 else 1) for step in range(6)},  # not read by both
        {step: changed(read_at(step, 1 + step, 1), 1, PARAM, other, NAMES[:1]) for step in range(6)},  # nor copies
    ],
)
def test_other_teachers_are_not(steps: dict[int, Rows]) -> None:
    assert [f for f in run(steps, DP2) if "stands still" in f.title] == []


PARTS = {"tp": [(0, 1)]}
NORMS = ("norm.weight", "norm.bias")


def beside_parts(step: int, of_stream: Sequence[str] = (), width: int = 8) -> Rows:
    """Copies beside a part of a layer, without a mark; of these norms each rank has its own gradient, and values."""
    rows = changed(changed(healthy(step, 2, ""), 1, PARAM, other, ["head.weight"]), 1, GRAD, own, ["head.weight"])
    rows = {r: [replace(e, summary=SPREAD) if e.port == PARAM and e.site not in NORMS else e for e in rows[r]]
            for r in rows}  # fmt: skip
    as_norm = {"module": "LayerNorm", "shape": (width,)}
    rows = {r: [replace(e, **as_norm) if e.site in NORMS else e for e in rows[r]] for r in rows}
    rows = changed(rows, 1, GRAD, own, of_stream)
    return changed(rows, 1, PARAM, other, of_stream) if step else rows


def test_norms_beside_parts_of_layers_that_nobody_adds_up_are_told() -> None:
    (finding,) = run({step: beside_parts(step, NORMS) for step in (0, 10)}, PARTS)

    assert (finding.code, finding.severity, finding.step, finding.param) == ("HC301", "warning", 0, "norm.bias")
    assert "beside them" in finding.why[0]


@pytest.mark.parametrize(
    "steps",
    [
        {step: beside_parts(step) for step in (0, 10)},
        {step: beside_parts(step, NORMS[:1]) for step in (0, 10)},  # of a part of a layer, beside one that is a copy
        {step: beside_parts(step, NORMS, width=4) for step in (0, 10)},  # narrower than copies
        {0: beside_parts(0, NORMS), 10: beside_parts(10)},  # once
        {step: changed(beside_parts(step), 1, GRAD, own, NORMS) for step in (0, 10)},  # added up by the optimizer
        {step: changed(beside_parts(step, NORMS), 1, GRAD, own, NAMES[:1]) for step in (0, 10)},  # and no copy is alike
        {step: changed(beside_parts(step, NORMS), 1, PARAM, other, NORMS[:1 - step // 10]) for step in (0, 10)},
    ],
)  # fmt: skip
def test_other_norms_beside_parts_are_not(steps: dict[int, Rows]) -> None:
    assert [f for f in run(steps, PARTS) if "of norms" in f.title] == []
