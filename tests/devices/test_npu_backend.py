"""What the test device does as an accelerator does: else what is counted on it would mean nothing."""

from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path

import npu_backend
import pytest
import warm

HERE = Path(__file__).parent


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    if npu_backend.library() is None:
        pytest.skip("no C++ compiler, or torch without its headers")


def printed(program):
    before = f"import sys; sys.path.insert(0, {str(HERE)!r}); import npu_backend, torch\nnpu = npu_backend.begin()\n"
    done = warm.run([sys.executable, "-c", before + textwrap.dedent(program)], env=dict(os.environ), timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_what_waits_for_the_device_is_counted_with_its_place():
    found = printed("""
    x = torch.ones(4, device="npu")
    with npu_backend.Syncs(n_frames=1) as healthy:
        y = torch.nn.functional.linear(x, x[None]).sum()
        torch._foreach_norm([x, y], 2)
    with npu_backend.Syncs(n_frames=1) as syncs:
        y.item(), x.cpu(), x.tolist(), bool(y > 0), torch.equal(x, x), npu.synchronize(), x.nonzero()
        torch.tensor([1, 2], device="npu")
        torch.ones(2).to("npu", non_blocking=True)
    print(healthy.n, healthy.n_kernels > 2, sorted(syncs.by_kind.items()), syncs.n)
    print(len(syncs.places), [n for place, n in syncs.places.items() if place[0] == "to_host"])
    """)
    kinds = [("answer", 2), ("from_host", 1), ("item", 2), ("synchronize", 1), ("to_host", 2)]
    assert found == [f"0 True {kinds} 7", "5 [2]"]


def test_a_stream_that_reads_what_another_may_still_write_is_told_of():
    found = printed("""
    side, x = npu.Stream(), torch.ones(4, device="npu")
    side.wait_stream(npu.current_stream())
    with npu.stream(side):
        made = x * 2
    made[:2] + 1
    print(npu_backend.races())
    npu.current_stream().wait_stream(side)
    made[:2] + 1
    print(npu_backend.races())
    with npu.stream(side):
        made[2:].zero_()
    made[:2] + 1, made.sum().item()
    print(npu_backend.races())
    """)
    assert found[:2] == ["['aten::add on stream 0 reads what stream 1 writes']", "[]"]
    assert "'aten::sum on stream 0 reads what stream 1 writes'" in found[2]
    assert "aten::add" not in found[2]


def test_an_event_is_ready_when_its_stream_has_got_there():
    found = printed("""
    x, event, late = torch.ones(4, device="npu"), npu.Event(), npu.Event()
    for _ in range(100):
        x = x + 1
    event.record()
    asked = [event.query(), event.query()]
    with npu_backend.never_ready():
        x = x + 1
        late.record()
        asked += [late.query(), late.query(), event.query()]
        try:
            x.sum().item()
        except RuntimeError as error:
            print(error)
    print(asked, late.query())
    """)
    assert found[0].startswith("the host would wait for ever (item)")
    assert found[-1] == "[False, True, False, False, True] True"


def test_a_capture_forbids_what_waits_or_reads_the_random_state():
    found = printed("""
    x, event = torch.ones((), device="npu"), npu.Event()
    event.record()
    print(npu.is_current_stream_capturing())
    with npu_backend.capturing():
        print(npu.is_current_stream_capturing())
        torch.nn.functional.dropout(x + 1)
        for what in (x.item, x.cpu, npu.synchronize, event.synchronize, npu.get_rng_state):
            try:
                what()
            except RuntimeError as error:
                print("capturing" in str(error))
    print(x.item())
    """)
    assert found == ["False", "True", *["True"] * 5, "1.0"]


def test_memory_ends():
    found = printed("""
    before = npu.memory_allocated()
    with npu_backend.limited_memory(6000):
        held = torch.empty(1000, device="npu")
        try:
            torch.empty(1000, device="npu")
        except torch.OutOfMemoryError as error:
            print("out of memory" in str(error))
        del held
        torch.empty(1000, device="npu")
    print(npu.memory_allocated() - before, npu.max_memory_allocated() - before >= 4000)
    """)
    assert found == ["True", "0 True"]


def test_a_failed_assert_is_met_at_the_next_sync_and_ever_after():
    found = printed("""
    x = torch.ones((), device="npu")
    torch._assert_async(torch.zeros((), dtype=torch.bool, device="npu"), "index out of bounds")
    y = x + 1
    for what in (y.item, lambda: y + 1, x.cpu, npu.synchronize):
        try:
            what()
        except RuntimeError as error:
            print(str(error).splitlines()[0])
    """)
    assert found == ["NPU error: device-side assert triggered: index out of bounds"] * 4
