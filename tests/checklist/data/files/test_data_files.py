"""Two data files: the same samples, in another order, cut otherwise, of other types; and files that are damaged."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import jsonschema
import made_files
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hypocenter.checklist.checklist import Checklist, Row
from hypocenter.checklist.data.files.data_file import DataFile, open_data_file, pieces
from hypocenter.checklist.data.files.rows import of_files
from hypocenter.checklist.items.item import load
from hypocenter.cli.commands.checklist import command
from hypocenter.errors import ConfigError, HypocenterError
from hypocenter.json_answer import plain, published
from hypocenter.report.checklist import json

ROWS = np.arange(60, dtype=np.int32).reshape(6, 10)
ONE_SIDE = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def npy(path: Path, values: Any) -> Path:
    """An array saved as `.npy`."""
    np.save(path, values)
    return path


def opened(path: Path) -> DataFile:
    """The file, which is one of a known kind."""
    found = open_data_file(path)
    assert found is not None
    return found


def answer(one: Path, other: Path) -> Checklist:
    """What the checklist says of two files."""
    return of_files(opened(one), opened(other), (one, other), load())


def row(found: Checklist, name: str = "samples") -> Row:
    """One row of the answer."""
    return next(row for row in found.rows if row.item == f"data.file_{name}")


def test_a_megatron_dataset_and_an_array_of_another_type_hold_the_same(tmp_path: Path) -> None:
    one = made_files.megatron(tmp_path / "tokens", ROWS.tolist(), "uint16", documents=3)

    found = answer(one, npy(tmp_path / "b.npy", ROWS))

    assert found.status == "same"
    assert [row(found, name).verdict for name in ("samples", "count", "lengths")] == ["same"] * 3
    assert (row(found, "dtype").verdict, row(found, "dtype").baseline) == ("equivalent", "uint16")
    assert (row(found, "documents").verdict, row(found, "documents").baseline) == ("only-baseline", 3)
    jsonschema.validate(plain(json.written(found)), published(json.Compared))


@pytest.mark.parametrize("name", ["tokens", "tokens.idx", "tokens.bin"])
def test_a_megatron_dataset_may_be_named_by_either_file_or_by_both(tmp_path: Path, name: str) -> None:
    made_files.megatron(tmp_path / "tokens", [[1, 2, 3], [], [4]])

    found = opened(tmp_path / name)

    assert [found.read(i, 0, int(n)).tolist() for i, n in enumerate(found.lengths)] == [[1, 2, 3], [], [4]]


@pytest.mark.parametrize("dtype", sorted(made_files.CODES))
def test_every_type_of_megatron_is_read(tmp_path: Path, dtype: str) -> None:
    found = opened(made_files.megatron(tmp_path / "tokens", [[1, 2, 3], [100, 5]], dtype))

    assert found.dtype == np.dtype(dtype)
    assert found.read(1, 0, 2).tolist() == [100, 5]


def test_the_first_sample_that_differs_is_shown_with_both_sides_tokens(tmp_path: Path) -> None:
    other = ROWS.copy()
    other[3, 7], other[5, 0] = 999, 998

    found = answer(npy(tmp_path / "a.npy", ROWS), npy(tmp_path / "b.npy", other))

    assert found.status == "different"
    assert (row(found).baseline, row(found).candidate) == ("3[7]: 37 38 39", "3[7]: 999 38 39")
    assert "sample 3, position 7; samples differ at 2 of 6 places, and 2 of the baseline's 6" in row(found).why


def test_the_same_samples_in_another_order_are_told_with_the_first_that_moved(tmp_path: Path) -> None:
    found = answer(npy(tmp_path / "a.npy", ROWS), npy(tmp_path / "b.npy", ROWS[[0, 1, 4, 3, 2, 5]].astype(np.uint16)))

    assert row(found).verdict == "different"
    assert row(found, "dtype").verdict == "equivalent"
    assert "the same samples in another order: 2 of 6 places" in row(found).why
    assert "sample 2 of the baseline, which is sample 4 of the candidate" in row(found).why


def test_a_file_that_ends_sooner_is_told_by_the_first_sample_it_lacks(tmp_path: Path) -> None:
    one = made_files.megatron(tmp_path / "a", [[1, 2], [3, 4], [5, 6]])

    found = answer(one, npy(tmp_path / "b.npy", np.array([[1, 2], [3, 4]])))

    assert (row(found).baseline, row(found).candidate) == ("2[0]: 5 6", "2[0]: no such sample")
    assert row(found, "count").verdict == "different"


@pytest.mark.parametrize("n_overlap", [0, 1])
def test_a_stream_and_its_samples_are_equivalent_with_the_rest_named(tmp_path: Path, n_overlap: int) -> None:
    stream = np.arange(63) * 7 % 50
    samples = np.stack([stream[i * 10 : i * 10 + 10 + n_overlap] for i in range(6)])

    found = answer(npy(tmp_path / "a.npy", stream), npy(tmp_path / "b.npy", samples))

    assert found.status == "same"
    assert row(found).verdict == "equivalent"
    assert ("begins with the last token of the one before" in row(found).why) == bool(n_overlap)
    assert f"the last {3 - n_overlap} tokens of the baseline are in no sample" in row(found).why


def test_a_stream_that_is_not_the_samples_is_different(tmp_path: Path) -> None:
    stream = np.arange(60)
    stream[41] = 7

    found = answer(npy(tmp_path / "a.npy", ROWS), npy(tmp_path / "b.npy", stream))

    assert found.status == "different"
    assert "are not the stream" in row(found).why


def test_samples_of_other_lengths_are_told_as_one_stream_cut_otherwise(tmp_path: Path) -> None:
    found = answer(npy(tmp_path / "a.npy", ROWS), npy(tmp_path / "b.npy", ROWS.reshape(4, 15)))

    assert row(found).verdict == "different"
    assert "the same token stream cut otherwise: 60 tokens are equal" in row(found).why


def test_a_label_at_the_end_of_each_sample_is_told(tmp_path: Path) -> None:
    longer = np.concatenate([ROWS, np.full((6, 1), 5, dtype=np.int32)], axis=1)

    found = answer(npy(tmp_path / "a.npy", ROWS), npy(tmp_path / "b.npy", longer))

    assert row(found).verdict == "different"
    assert "each sample of the candidate has one token more at its end" in row(found).why


def test_two_streams_part_at_a_position(tmp_path: Path) -> None:
    other = np.arange(60)
    other[41] = 7

    found = answer(npy(tmp_path / "a.npy", np.arange(60)), npy(tmp_path / "b.npy", other))

    assert row(found).why.startswith("the first difference is at position 41")


def test_fractions_are_compared_and_are_no_ids(tmp_path: Path) -> None:
    one, other = npy(tmp_path / "a.npy", ROWS / 7), npy(tmp_path / "b.npy", ROWS)

    assert answer(one, one).status == "same"
    assert row(answer(one, other)).candidate == "whole numbers"


def test_an_id_of_64_bits_is_no_negative_one(tmp_path: Path) -> None:
    one = npy(tmp_path / "a.npy", np.array([[2**64 - 1]], dtype=np.uint64))

    with pytest.raises(HypocenterError, match="larger than any id"):
        answer(one, npy(tmp_path / "b.npy", np.array([[-1]])))


def test_a_sample_is_read_in_pieces(tmp_path: Path) -> None:
    file = opened(npy(tmp_path / "a.npy", np.arange(10)))

    assert [piece.tolist() for piece in pieces(file, 0, piece=4)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_the_command_answers_with_its_exit_code_and_takes_one_file_a_side(tmp_path: Path) -> None:
    one, other = npy(tmp_path / "a.npy", ROWS), npy(tmp_path / "b.npy", ROWS[::-1])
    (tmp_path / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")

    asked = {"standalone_mode": False, "help_option_names": ["-h", "--help"]}  # as our command line asks
    said = CliRunner().invoke(command, [str(one), str(other)], **asked)
    mixed = CliRunner().invoke(command, [str(one), str(tmp_path / "config.json")], **asked)

    assert said.return_value == 1
    assert "the same samples in another order" in said.output
    assert isinstance(mixed.exception, ConfigError)
    assert mixed.exception.where == str(tmp_path / "config.json")


def test_an_array_of_objects_is_refused_and_nothing_is_unpickled(tmp_path: Path) -> None:
    one = npy(tmp_path / "a.npy", np.array([print, len], dtype=object))

    with pytest.raises(HypocenterError, match="bad-data-file"):
        open_data_file(one)


@pytest.mark.parametrize("shape", [(3, 0), (2, 2, 2), ()])
def test_an_array_without_samples_is_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    with pytest.raises(HypocenterError, match="bad-data-file"):
        open_data_file(npy(tmp_path / "a.npy", np.zeros(shape, dtype=np.int32)))


def test_an_index_without_its_data_names_what_is_missing(tmp_path: Path) -> None:
    index = made_files.megatron(tmp_path / "a", [[1]])
    (tmp_path / "a.bin").unlink()

    with pytest.raises(HypocenterError, match=r"a\.bin"):
        open_data_file(index)


@pytest.mark.parametrize(
    ("at", "value", "why"),
    [
        (9, struct.pack("<Q", 2), "version 2"),
        (17, b"\x09", "no type has the code 9"),
        (18, struct.pack("<Q", 2**63), "need"),
        (34, struct.pack("<i", -1), "sequence 0 lies outside"),
        (34, struct.pack("<i", 2**31 - 1), "sequence 0 lies outside"),
        (42, struct.pack("<q", 2**63 - 1), "sequence 0 lies outside"),
        (34, struct.pack("<i", 4), "overlap"),
        (66, struct.pack("<q", 9), "document index"),
    ],
)
def test_an_index_that_lies_is_one_clear_error(tmp_path: Path, at: int, value: bytes, why: str) -> None:
    index = made_files.megatron(tmp_path / "a", [[1, 2], [3, 4]])
    raw = bytearray(index.read_bytes())
    raw[at : at + len(value)] = value
    index.write_bytes(raw)

    with pytest.raises(HypocenterError, match=why):
        open_data_file(index)


def damaged(path: Path, *, cut: float, flips: list[tuple[float, int]]) -> None:
    """The file, cut off at a share of its length and with some bits turned."""
    raw = bytearray(path.read_bytes())
    for place, bit in flips:
        raw[int(place * (len(raw) - 1))] ^= 1 << bit
    path.write_bytes(raw[: int(cut * len(raw))])


SHARE = st.floats(0, 1)
FLIPS = st.lists(st.tuples(SHARE, st.integers(0, 7)), max_size=4)


@ONE_SIDE
@given(cut=st.one_of(st.just(1.0), SHARE), flips=FLIPS, which=st.sampled_from(["a.idx", "a.bin", "b.npy"]))
def test_damaged_files_are_compared_or_are_one_error(
    tmp_path: Path, cut: float, flips: list[tuple[float, int]], which: str
) -> None:
    index = made_files.megatron(tmp_path / "a", ROWS.tolist())
    array = npy(tmp_path / "b.npy", ROWS)
    damaged(tmp_path / which, cut=cut, flips=flips)

    try:
        files = [open_data_file(path) for path in (index, array)]
        found = of_files(*files, (index, array), load()) if None not in files else None  # type: ignore[arg-type]
    except HypocenterError:
        return

    assert found is None or found.status in ("same", "different", "cannot-tell")
