"""Rows over batches: what a pass explains, or chance, is not remarked on."""

import random

import pytest

from hypocenter.detect.batch_rows import KNOWN, OneRow, Pairs, RowTrack, digests
from hypocenter.detect.replica_rows import ROW_PLACES
from hypocenter.nouns import Reading, replace

N, B = 60, 16  # batches of a pass, rows of a batch
SAMPLES = list(range(1, N * B + 1))


def fed(batches, resumed_at=None, n_ranks=1):
    """What is said of the rows of each batch."""
    track, found = RowTrack(), []
    for step, batch in enumerate(batches):
        if step == resumed_at:
            track.resume(step, n_ranks)
        rows = dict(enumerate(batch))
        found += [("copies", step)] if track.copies(rows) is not None else []
        if (came := track.add(rows, step, 0)) is not None:
            found.append(("left out" if not came.n_found else "again", came.step))
    return found


def passes(n, size=N * B, *, seed=0, is_shuffled=True, batch=B, drop_last=False):
    """Batches of some passes."""
    rng, found = random.Random(seed), []
    for _ in range(n):
        order = rng.sample(SAMPLES[:size], size) if is_shuffled else SAMPLES[:size]
        found += [order[at : at + batch] for at in range(0, size - (batch - 1 if drop_last else 0), batch)]
    return found


def chained(size, n):
    """Passes one behind the other, whose ends fall into batches."""
    order = [each for number in range(n) for each in random.Random(number).sample(SAMPLES[:size], size)]
    return [order[at : at + B] for at in range(0, len(order) - B + 1, B)]


def buffered(n_passes, size):
    """A stream through a shuffle buffer, whose passes run into one another."""
    rng, held, out = random.Random(0), [], []
    for _ in range(n_passes):
        for each in SAMPLES:
            held.append(each)
            if len(held) > size:
                out.append(held.pop(rng.randrange(len(held))))
    return [out[at : at + B] for at in range(0, len(out) - B + 1, B)]


def shared(n_passes, seed):
    """One of two ranks, whose share of the data is another in each pass."""
    halves = [random.Random(seed + number).sample(SAMPLES, len(SAMPLES))[::2] for number in range(n_passes)]
    return [half[at : at + B] for half in halves for at in range(0, len(half) - B + 1, B)]


HABITS = {
    "passes in another order": passes(5),
    "passes in the same order": passes(5, is_shuffled=False),
    "a last batch of few, dropped": passes(5, size=N * B - 7, drop_last=True),
    "a last batch of few": passes(5, size=N * B - 7),
    "ends of passes within batches": chained(N * B - 5, 6),
    "a shuffle buffer over passes": buffered(4, 400),
    "another share of the data in each pass": shared(4, 0),
    "a part of the data, drawn for each pass": [batch for n in range(4) for batch in passes(1, seed=n)[: N - 6]],
    "with replacement": [random.Random(step).choices(SAMPLES, k=B) for step in range(400)],
    "with replacement, of many": [random.Random(step).choices(range(1, 200_000), k=B) for step in range(400)],
    "one batch": [SAMPLES[:B]] * 200,
    "several passes over each batch": [batch for batch in passes(2) for _ in range(4)],
    "each eighth batch used once more": [b for n, b in enumerate(passes(1)) for _ in range(1 + (n % 8 == 0))],
    "copies in all batches": [[*batch, *batch] for batch in passes(3)],
    "a first stage of few, then others": passes(4, size=40 * B) + [[each + 5000 for each in b] for b in passes(2)],
}


@pytest.mark.parametrize("habit", HABITS)
def test_habits_are_silent(habit):
    assert fed(HABITS[habit]) == []


@pytest.mark.parametrize("seed", range(20))
def test_shuffled_passes_are_silent_whatever_the_order(seed):
    assert fed(passes(4, seed=seed)) == fed(passes(4, size=N * B - 9, seed=seed, drop_last=True)) == []
    assert fed(shared(4, seed)) == []


@pytest.mark.parametrize("at", [KNOWN + 8, N + 40, 2 * N - 3, 2 * N + 20])
def test_rows_of_an_earlier_batch_are_told_in_any_pass(at):
    batches = passes(3)
    batches[at] = batches[at][: B // 2] + batches[at - 9][B // 2 :]

    assert fed(batches) == [("again", at)]


@pytest.mark.parametrize("at", [KNOWN + 1, N + 5])
def test_copies_within_a_batch_are_told(at):
    batches = passes(2)
    batches[at] = batches[at][: B // 2] * 2

    assert fed(batches) == [("copies", at)]


def test_two_equal_rows_are_chance():
    batches = passes(2)
    batches[40] = [*batches[40][:-1], batches[40][0]]

    assert fed(batches) == []


@pytest.mark.parametrize("at", [N - 10, N + 30, 2 * N + 30])
def test_a_resumed_run_that_shuffles_anew_is_told(at):
    batches = passes(3)[:at] + passes(3, seed=9)

    assert fed(batches, resumed_at=at)[0] == ("again", at)


@pytest.mark.parametrize("at", [N, 2 * N])
def test_a_run_resumed_between_passes_is_silent(at):
    assert fed(passes(2)[:at] + passes(3, seed=9), resumed_at=at) == []


@pytest.mark.parametrize("at", [N // 2, N + 30])
def test_a_run_resumed_as_it_should_be_is_silent(at):
    assert fed(passes(4), resumed_at=at) == []


def test_one_of_many_ranks_may_have_other_rows_after_a_checkpoint():
    assert fed(shared(1, 3) + shared(3, 4), resumed_at=N // 2, n_ranks=2) == []


def test_what_a_resumed_run_leaves_out_is_told_when_the_pass_ends():
    batches = passes(3)

    assert fed(batches[: N + 30] + batches[N + 35 :], resumed_at=N + 30) == [("left out", N + 30)]


@pytest.mark.parametrize("seed", range(8))
def test_what_a_resumed_run_leaves_out_of_its_first_pass_is_told_once_a_second_has_used_all(seed):
    batches = passes(4, seed=seed)

    assert fed(batches[:40] + batches[45:], resumed_at=40) == [("left out", 40)]


def test_a_stream_that_a_resumed_run_reads_from_its_start_is_told_once_it_goes_on():
    batches = passes(3, is_shuffled=False)

    assert fed(batches[:40] + batches, resumed_at=40) == [("again", 40)]


@pytest.mark.parametrize(("n_more", "may_be_meant"), [(0, True), (25, False)])
def test_what_a_first_stage_of_few_data_would_look_like_is_no_proof(n_more, may_be_meant):
    batches = passes(1, is_shuffled=False)
    track, found = RowTrack(), []

    for step, batch in enumerate([*batches[:40], *batches[: 40 - n_more], *batches[40:]]):
        if step == 40:
            track.resume(step, 1)
        came = track.add(dict(enumerate(batch)), step, 0)
        found += [came] if came is not None else []

    assert [(each.step, each.may_be_meant) for each in found] == [(40, may_be_meant)]


@pytest.mark.parametrize("habit", HABITS)
@pytest.mark.parametrize("at", [36, 50, 60])
def test_habits_of_a_run_that_is_resumed_as_it_should_be_are_silent(habit, at):
    assert fed(HABITS[habit], resumed_at=at) == []


def tensor(site, numbers, *, width):
    rows = tuple(digest * ROW_PLACES + place for place, digest in enumerate(numbers))
    return Reading(
        step=0,
        microbatch=0,
        phase="data",
        site=site,
        port="field",
        order=0,
        shape=(len(numbers), width),
        row_digests=rows,
    )


def paired(batches, label_of):
    pairs = Pairs()
    return [
        found
        for step, batch in enumerate(batches)
        for x in [tensor("batch.in[0]", batch, width=8)]
        for found in pairs.add(x, [x, tensor("batch.loss[0]", label_of(step, batch), width=1)], step)
    ]


def test_digests_are_told_by_their_places():
    assert digests(tensor("batch.in[0]", [7, 9], width=2)) == {0: 7, 1: 9}


def test_labels_shuffled_against_inputs_are_told():
    (found,) = paired(passes(2), lambda step, b: [x % 7 for x in (b if step != N + 20 else b[1:] + b[:1])])

    assert found.site == "batch.loss[0]"
    assert len(found.places) > B // 2


def test_of_two_steps_that_hold_the_same_rows_either_may_be_wrong():
    shuffled = {20: lambda b: b[1:] + b[:1]}

    found = paired(passes(3, is_shuffled=False), lambda step, b: [x % 7 for x in shuffled.get(step, list)(b)])

    assert [each.other_step for each in found] == [20]


@pytest.mark.parametrize(
    "label_of",
    [
        lambda step, batch: [x % 7 for x in batch],
        lambda step, batch: [(x * 7919 + step) % 1000 for x in batch],  # drawn anew each time
        lambda step, batch: [x % 7 if x % 200 else step for x in batch],  # few that change
    ],
)
def test_labels_that_hold_or_never_did_are_silent(label_of):
    assert paired(passes(4), label_of) == []


def apart(n_passes, *, of_each_pass):
    """Labels of a data set in the orders of other passes: `of_each_pass(number)` gives that of one."""
    return {
        step: [x % 7 for x in batch]
        for number in range(n_passes)
        for step, batch in enumerate(of_each_pass(number), start=number * N)
    }


def test_labels_that_are_shuffled_by_themselves_are_told_at_the_end_of_the_second_pass():
    labels = apart(3, of_each_pass=lambda number: passes(1, seed=90 + number))

    (found,) = paired(passes(3), lambda step, batch: labels[step])

    assert found.by_chance is not None
    assert N * B - B <= found.n_known <= N * B
    assert abs(found.n_before - found.by_chance) < 4 * found.by_chance**0.5


def test_labels_that_are_drawn_for_each_row_are_silent():
    rng = random.Random(1)

    assert paired(passes(4), lambda step, batch: [rng.randrange(7) for _ in batch]) == []


def test_labels_of_rows_that_are_drawn_with_replacement_are_silent():
    batches, rng = HABITS["with replacement"], random.Random(2)

    assert paired(batches, lambda step, batch: [rng.randrange(7) for _ in batch]) == []


def test_another_row_that_the_label_is_of_too_is_silent():
    """Of pairs of a siamese network both the other row and the label are others in each pass."""
    pairs, found = Pairs(), []
    labels = apart(2, of_each_pass=lambda number: passes(1, seed=90 + number))
    for step, (batch, other) in enumerate(zip(passes(2), passes(2, seed=5), strict=True)):
        x, y = tensor("batch.in[0]", batch, width=8), tensor("batch.in[1]", other, width=8)
        found += pairs.add(x, [x, y, tensor("batch.loss[0]", labels[step], width=1)], step)

    assert found == []


def one_row(batches, label_of=lambda row: [row, row + 1, row + 2, row + 3], dtype="float32"):
    track = OneRow()
    return [
        track.add(x, [x, tensor("batch.loss[0]", label_of(batch[0]), width=1)])
        for batch in batches
        for x in [replace(tensor("batch.in[0]", batch, width=8), dtype=dtype)]
    ]


def test_batches_of_one_row_are_told_once():
    assert one_row([[7] * 4, [8] * 4, [9] * 4]) == [0, 4, 0]


def test_what_each_row_is_given_on_purpose_is_silent():
    assert not any(one_row([[7] * 4] * 4))  # the same in each batch: a grid of points
    assert not any(one_row([[7] * 4, [8] * 4], label_of=lambda row: [row] * 4))  # and so are the labels
    assert not any(one_row([[7] * 4, [8] * 4], dtype="int64"))  # positions
    assert not any(one_row([[0] * 4, [0] * 4]))  # constant rows
    assert not any(one_row([[7, 8] * 2, [9, 9] * 2, [7, 8] * 2]))
