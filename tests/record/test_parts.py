"""record/parts.py: which files stand for which segments of which process."""

from __future__ import annotations

from pathlib import Path

from hypocenter.record.parts import all_parts, gathered, parts_of, segment_name


def made(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).touch()
    return folder


def test_segments_come_in_order_and_the_first_has_no_number(tmp_path: Path) -> None:
    names = [segment_name("events", "a.s00001-1", number) for number in (10, 0, 2)]
    found = parts_of(made(tmp_path, *names, "journal-h-1.msgpack", "rank.json"))

    assert [(part.writer, part.first) for part in found] == [("a.s00001-1", 0), ("a.s00001-1", 2), ("a.s00001-1", 10)]


def test_a_file_of_several_segments_stands_for_them(tmp_path: Path) -> None:
    made(tmp_path, "events-h-1.arrow", "sealed-events-h-1.s00001.parquet", "sealed-events-h-1.s00002.parquet")
    target = gathered(tmp_path, "events", "h-1", 0, 1)
    made(tmp_path, target.sealed.name)

    assert [(part.first, part.last, part.is_gathered) for part in parts_of(tmp_path)] == [(0, 1, True), (2, 2, False)]
    assert len(all_parts(tmp_path)) == 4


def test_processes_and_kinds_do_not_stand_for_each_other(tmp_path: Path) -> None:
    made(tmp_path, "sealed-steps-h-1.s00000-00003.parquet", "events-h-1.s00001.arrow", "steps-h-2.s00001.arrow",
         "sealed-windows-h-1.s00000-00003.parquet")  # fmt: skip

    assert [(part.kind, part.writer) for part in parts_of(tmp_path)] == [
        ("events", "h-1"), ("steps", "h-1"), ("steps", "h-2"),
    ]  # fmt: skip
    assert [part.kind for part in parts_of(tmp_path, ("windows",))] == ["windows"]


def test_a_stream_and_its_sealed_form_are_one_part(tmp_path: Path) -> None:
    (part,) = parts_of(made(tmp_path, "events-h-1.arrow", "sealed-events-h-1.parquet"))

    assert part.stream.name == "events-h-1.arrow"
    assert part.sealed.name == "sealed-events-h-1.parquet"
