"""nodes/00008: what is written is read, also of a job in which all ranks are one group."""

from pathlib import Path

from hypocenter.nouns import Coords, Place
from hypocenter.record.node_file import NodeFile, NodeNote, RankNote, read_node
from hypocenter.record.whereabouts import LastCall, Whereabouts, group_key, packed_ranks

N, PER_NODE = 10_000, 8
EVERYONE = tuple(range(N))


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
    NodeFile(tmp_path, 0, PER_NODE).write(NodeNote(host="h", written_ns=1, ranks=notes))
    found = read_node(tmp_path / "nodes" / "00000")

    assert found is not None
    assert found[1].ranks == notes
    assert {note.seen.call.ranks for note in found[1].ranks.values() if note.seen.call} == {EVERYONE}
