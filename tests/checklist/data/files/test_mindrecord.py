"""MindRecord files, as the real FileWriter made them, against the same ids in other files."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import made_files
import numpy as np
import pytest
import write_mindrecord
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hypocenter.checklist.data.files.data_file import DataFile, digests, open_data_file
from hypocenter.checklist.data.files.rows import of_files
from hypocenter.checklist.items.item import load
from hypocenter.errors import HypocenterError

SAMPLE = Path(__file__).parent / "samples" / "tokens.mindrecord"
PYTHON = os.environ.get("MINDSPORE_PYTHON", sys.executable if find_spec("mindspore") else "")


def opened(path: Path) -> DataFile:
    """The file, which is one of a known kind."""
    found = open_data_file(path)
    assert found is not None
    return found


def test_every_value_is_read_whatever_its_packed_width() -> None:
    found = opened(SAMPLE)

    read = [found.read(i, 0, int(n)).tolist() for i, n in enumerate(found.lengths)]
    assert read == [sample.tolist() for sample in write_mindrecord.samples()]
    assert found.notes == ("the field input_ids was compared, and not: attention, number",)


def test_a_mindrecord_and_a_megatron_dataset_hold_the_same_samples(tmp_path: Path) -> None:
    other = made_files.megatron(tmp_path / "tokens", [sample.tolist() for sample in write_mindrecord.samples()])

    found = of_files(opened(SAMPLE), opened(other), (SAMPLE, other), load())

    assert found.status == "same"
    assert (found.kinds_baseline, found.kinds_candidate) == (("MindRecord",), ("Megatron indexed dataset",))
    assert found.notes == ("baseline: the field input_ids was compared, and not: attention, number",)


def test_one_id_that_differs_is_found(tmp_path: Path) -> None:
    rows = [sample.tolist() for sample in write_mindrecord.samples()]
    rows[4][1000] += 1
    other = made_files.megatron(tmp_path / "tokens", rows)

    found = of_files(opened(SAMPLE), opened(other), (SAMPLE, other), load())

    row = next(row for row in found.rows if row.item == "data.file_samples")
    assert "first difference is at sample 4, position 1,000; samples differ at 1 of 9 places" in row.why


def test_a_file_is_known_by_its_index_too(tmp_path: Path) -> None:
    (tmp_path / "a.mindrecord").write_bytes(SAMPLE.read_bytes())

    assert len(opened(tmp_path / "a.mindrecord.db").lengths) == write_mindrecord.N_SAMPLES


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (b'"version":"3.0"', b'"version":"9.0"', "version 9.0"),
        (b'"page_id":1', b'"page_id":0', "one place"),
        (b'"page_id":0', b'"page_id":9', "outside the file"),
        (b'"end_row_id":', b'"end_row_id":99999', "cannot hold rows"),
        (b'"end_row_id":9,', b'"end_row_id":8,', "more than its"),
        (b'"type":"int32"', b'"type":"bytes"', "no field is an array"),
    ],
)
def test_a_header_that_lies_is_one_clear_error(tmp_path: Path, old: bytes, new: bytes, why: str) -> None:
    raw = SAMPLE.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = raw[8 : 8 + size].replace(old, new).replace(b'"int64"', b'"bytes"' if b"bytes" in new else b'"int64"')
    path = tmp_path / "a.mindrecord"
    path.write_bytes((len(header).to_bytes(8, "little") + header).ljust(1 << 14, b"\0") + raw[1 << 14 :])

    with pytest.raises(HypocenterError, match=why):
        open_data_file(path)


SHARE = st.floats(0, 1)
PLACES = st.one_of(st.integers(0, 2000), st.integers(1 << 14, (1 << 14) + 60), st.integers(1 << 14, 3 << 14))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.one_of(st.just(1.0), SHARE), flips=st.lists(st.tuples(PLACES, st.integers(0, 7)), max_size=4))
def test_a_damaged_file_is_read_or_is_one_error(tmp_path: Path, cut: float, flips: list[tuple[int, int]]) -> None:
    raw = bytearray(SAMPLE.read_bytes())
    for place, bit in flips:
        raw[place] ^= 1 << bit
    path = tmp_path / "a.mindrecord"
    path.write_bytes(raw[: int(cut * len(raw))])

    try:
        found = open_data_file(path)
        n_digests = len(digests(found)) if found is not None else 0
    except HypocenterError:
        return

    assert n_digests in (0, write_mindrecord.N_SAMPLES) or flips


@pytest.mark.skipif(not PYTHON, reason="no MindSpore here, and MINDSPORE_PYTHON names none")
def test_what_file_writer_writes_now_is_read_as_the_sample_is(tmp_path: Path) -> None:
    path = tmp_path / "now.mindrecord"
    script = Path(write_mindrecord.__file__)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    subprocess.run([PYTHON, str(script), str(path)], check=True, env=environment, capture_output=True, timeout=300)

    assert np.array_equal(digests(opened(path)), digests(opened(SAMPLE)))
