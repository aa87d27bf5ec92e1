"""nodes/00008: what is written is read, also of a job in which all ranks are one group."""

import zlib
from pathlib import Path

import msgspec

from hypocenter.nouns import Coords, Place
from hypocenter.record import node_file
from hypocenter.record.node_file import NodeFile, NodeNote, RankNote, read_node
from hypocenter.record.whereabouts import LastCall, Whereabouts, group_key, packed_ranks

N, PER_NODE = 10_000, 8
EVERYONE = tuple(range(N))


def written(run: Path, *notes: NodeNote) -> Path:
    file = NodeFile(run, 0, PER_NODE)
    for note in notes:
        file.write(note)
    return run / "nodes" / "00000"


def test_ranks_in_a_collective_of_ten_thousand_fit_into_the_file_of_their_node(tmp_path: Path) -> None:
    call = LastCall(
        op="all_reduce.sum", group="0", members=packed_ranks(EVERYONE).decode(), seq=7, state="inside", entered_ns=1,
        left_ns=0,
    )  # fmt: skip
    counts = {group_key(str(group), EVERYONE): 1 << 40 for group in range(8)}
    notes = {
        rank: RankNote(
            seen=Whereabouts(
                rank=rank, world_size=N, host="h" * 64, pid=rank, boot="b" * 36, pid_namespace=1, start_ticks=1,
                started_ns=1, call=call, counts=counts, site="m" * 144, line="l" * 160, stack="s" * 500,
            ),
            life="running",
            place=Place(rank=rank, world_size=N, host="h" * 64, device="cuda:0", coords=Coords(dp=rank)),
        )
        for rank in range(PER_NODE)
    }  # fmt: skip
    found = read_node(written(tmp_path, NodeNote(host="h", written_ns=1, ranks=notes)))

    assert found is not None
    assert found[1].ranks == notes
    assert {note.seen.call.ranks for note in found[1].ranks.values() if note.seen.call} == {EVERYONE}


def test_where_nothing_was_written_since_what_was_read_before_is_given_again(tmp_path: Path) -> None:
    path = written(tmp_path, NodeNote(host="a", written_ns=1, ranks={}), NodeNote(host="b", written_ns=2, ranks={}))
    first = read_node(path)
    again = read_node(path, first)
    later = read_node(path, (1, NodeNote(host="a", written_ns=1, ranks={})))

    assert first is not None
    assert again is first
    assert later == first == (2, NodeNote(host="b", written_ns=2, ranks={}))


def test_the_first_format_is_read_without_the_ranks_of_groups(tmp_path: Path) -> None:
    call = {"op": "all_reduce.sum", "group": "0", "ranks": [0, 1], "seq": 7, "state": "inside", "entered_ns": 1}
    seen = {"rank": 0, "world_size": 2, "host": "h", "pid": 1, "boot": "b", "pid_namespace": 1, "start_ticks": 1}
    old = {
        "host": "h",
        "written_ns": 1,
        "ranks": {0: {"seen": seen | {"started_ns": 1, "call": call | {"left_ns": 0}}}},
    }
    data = msgspec.msgpack.encode(old)
    path = tmp_path / "00000"
    head = node_file._HEAD.pack(node_file._MAGIC, 1, 1, len(data), zlib.crc32(data))
    path.write_bytes((head + data).ljust(4096, b"\0") + b"\0" * 4096)
    found = read_node(path)

    assert found is not None
    assert found[1].ranks[0].seen.call == LastCall(
        op="all_reduce.sum", group="0", seq=7, state="inside", entered_ns=1, left_ns=0
    )
    assert found[1].ranks[0].seen.call.ranks == ()
