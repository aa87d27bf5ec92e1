"""MindSpore's Dump, of graphs: npy files and statistic.csv of each operator, with graphs and execution order beside."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from hypocenter.importing.catalogue import Head, NotADumpError, importer
from hypocenter.importing.mindspore_names import parse_file
from hypocenter.importing.mindspore_rank import MOST_ORDERED, Rank
from hypocenter.importing.mindspore_tree import STATISTICS, Folder, folders_of
from hypocenter.importing.recording import Recording

_MARKS = (".dump_metadata/data_dump.json", ".dump_metadata/config.json")


def accepts(head: Head) -> float:
    """Return how sure it is a folder with dumped tensors, by the names in it (0 to 1)."""
    if not head.is_directory:
        return 0.0
    if any(name.endswith(_MARKS) for name in head.names):
        return 0.95
    last = [name.rpartition("/")[2] for name in head.names]
    if any(parse_file(name) is not None for name in last):
        return 0.85
    return 0.4 if STATISTICS in last else 0.0


@importer("mindspore-dump", accepts=accepts)
def read(path: Path, into: Recording) -> None:
    """MindSpore's Dump of graphs: npy files, statistic.csv, mapping.csv, graphs (.ir); several ranks."""
    if not path.is_dir():
        raise NotADumpError("no folder", where=str(path), fix="name the folder that holds rank_*/")
    folders = folders_of(path)
    if not folders:
        raise NotADumpError("no dumped tensor in it", where=str(path), fix="name the folder that holds rank_*/")
    into.world_size = max(folder.rank for folder in folders) + 1
    if into.world_size > MOST_ORDERED:
        raise NotADumpError(f"rank {into.world_size - 1:,} in it", where=str(path))
    into.note("each operator is a site below its cell, with its type as last part; micro-batches cannot be told")
    for rank, of_rank in groupby(folders, key=lambda folder: folder.rank):
        _read_rank(Rank(rank=rank, into=into), list(of_rank))


def _read_rank(rank: Rank, folders: list[Folder]) -> None:
    rank.look(folders)
    folders = rank.leave_out_evaluation(folders)
    constants = [folder for folder in folders if folder.is_constants]
    steps = [folder for folder in folders if not folder.is_constants]
    for step, of_step in groupby(steps, key=lambda folder: folder.step):
        rank.step(step, [list(of_step)], constants)
        constants = []
    rank.end()
