"""Laws that are broken are told, with where; data sets that draw, remember, cache and sort are left alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Subset, default_collate

from hypocenter.session.data_set.asked import Asked, Broken, decoded, encoded
from hypocenter.session.data_set.child import ask
from hypocenter.session.data_set.laws import broken_laws
from tests.session.data_set import sets

LONG_S = 60.0  # nothing is to time out
INDICES = tuple(range(3, 19, 2))


def asked(
    dataset: Any, collate: Any = default_collate, *, indices: tuple[Any, ...] = INDICES,
    is_batched: bool = True, is_kept: bool = True,
) -> list[Broken]:  # fmt: skip
    """Ask as a run does: in a child."""
    of = Asked(dataset=dataset, collate=collate, indices=indices, is_batched=is_batched, is_kept=is_kept)
    answer = ask(lambda: encoded(broken_laws(of, LONG_S)), LONG_S)
    assert answer is not None
    return decoded(answer)


def told(*given: Any, **also: Any) -> list[tuple[str, str, str]]:
    return [(each.law, each.field, each.other) for each in asked(*given, **also)]


@pytest.mark.parametrize(
    ("dataset", "field"),
    [
        (sets.CutOut, "images[3]"),
        (sets.CutOutOfNumPy, "pictures[3]"),
        (sets.CutOutOfACache, "cache[3][image]"),
        (sets.ScaledInPlace, "images[3]"),
        (sets.CutOutOfAGlobal, ""),
    ],
)
def test_a_data_set_that_reading_changes_is_told(dataset: Callable[[], Any], field: str) -> None:
    assert told(dataset()) == [("read only", field, "")]


def test_what_nobody_can_say_where_it_is_held_is_likely_and_the_rest_is_proven() -> None:
    assert [each.is_proven for each in asked(sets.CutOutOfAGlobal())] == [False]
    (found,) = asked(sets.CutOut())

    assert found.is_proven
    assert found.indices == ("3", "5", "7")


def test_a_part_of_a_data_set_is_told_by_the_whole() -> None:
    part = Subset(sets.CutOut(), list(range(sets.N))[::-1])

    assert told(part) == [("read only", f"images[{sets.N - 4}]", "")]


def test_batches_of_one_sample_and_samples_that_are_batches() -> None:
    assert told(sets.CutOut(), indices=(4,)) == [("read only", "images[4]", "")]
    assert told(sets.CutOut(), indices=(4,), is_batched=False) == [("read only", "images[4]", "")]
    assert told(sets.OneArray(), indices=(4,), is_batched=False) == []  # each is used up before the next one is read


def test_workers_that_end_with_the_pass_take_all_changes_with_them() -> None:
    assert told(sets.CutOut(), is_kept=False) == []


@pytest.mark.parametrize(
    ("dataset", "field"), [(sets.OneArray, "item[0]"), (sets.OneTensor, "item[x]"), (sets.OneDictionary, "item")]
)
def test_items_in_one_memory_are_told(dataset: Callable[[], Any], field: str) -> None:
    assert told(dataset(), is_kept=False) == [("one by one", field, "")]


@pytest.mark.parametrize(
    ("collate", "fields"), [(sets.sorted_apart, ("[0]", "[2]")), (sets.sorted_apart_by_name, ("[tokens]", "[labels]"))]
)
def test_fields_that_are_parted_are_told(collate: sets.Collate, fields: tuple[str, str]) -> None:
    assert told(sets.Words(), collate) == [("together", *fields)]


def test_samples_that_come_sorted_are_not_parted() -> None:
    assert told(sets.Words(is_sorted=True), sets.sorted_apart) == []


@pytest.mark.parametrize(
    "dataset",
    [
        sets.Plain, sets.DrawsOfAll, sets.OwnGenerator, sets.KeepsWhatItMade, sets.Lazy, sets.ScaledOnce,
        sets.MixedWithTheLast, sets.OneOfFew, sets.Many,
    ],
)  # fmt: skip
def test_data_sets_that_keep_to_the_laws(dataset: Callable[[], Any]) -> None:
    assert told(dataset()) == []


@pytest.mark.parametrize(
    "collate",
    [
        sets.padded, sets.sorted_together, sets.sorted_and_said, sets.sorted_beside, sets.masked,
        sets.shuffled_negatives, sets.shifted_negatives, sets.packed, sets.all_alike, sets.in_pairs,
    ],
)  # fmt: skip
def test_collate_functions_that_keep_to_the_laws(collate: sets.Collate) -> None:
    assert told(sets.Words(), collate) == []


def test_halves_of_a_mixture_keep_together() -> None:
    assert told(sets.Plain(), sets.mixed) == []


def test_a_file_is_read_where_the_program_left_it(tmp_path: Path) -> None:
    dataset = sets.OfAFile(tmp_path / "images")
    dataset[5]
    there = dataset.file.tell()

    assert told(dataset) == []

    assert dataset.file.tell() == there
    assert torch.equal(dataset[7][0], sets.images()[7])
    assert dataset.n == 2  # readings: those of the child are its own


def test_collators_of_transformers_keep_together() -> None:
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = {word: at for at, word in enumerate(["[PAD]", "[MASK]", "[UNK]", *map(str, range(30))])}
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="[PAD]", mask_token="[MASK]", unk_token="[UNK]"
    )

    class Tokens(sets.Words):
        def __getitem__(self, i: int) -> Any:
            ids = self.tokens[i].tolist()
            return {"input_ids": ids, "attention_mask": [1] * len(ids), "label": i % 3}

    class Masked(sets.Words):
        def __getitem__(self, i: int) -> Any:
            return {"input_ids": self.tokens[i].tolist()}

    assert told(Tokens(), transformers.DataCollatorWithPadding(tokenizer)) == []
    assert told(Masked(), transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.3)) == []
