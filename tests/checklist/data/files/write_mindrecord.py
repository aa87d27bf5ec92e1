"""Write samples/tokens.mindrecord with the real FileWriter: `python write_mindrecord.py FILE` where MindSpore is.

The committed one is of MindSpore 2.10, with the smallest header and pages that it allows.
Its index (`.db`) is not kept.
"""

from __future__ import annotations

import sys

import numpy as np

N_SAMPLES, SEED = 9, 7


def samples() -> list[np.ndarray]:
    """Ids whose packed widths are 1, 2 and 4 bytes; of several lengths; over more than one page."""
    generator = np.random.default_rng(SEED)
    edges = np.array([0, -1, 127, 128, -128, -129, 255, 32767, 32768, -32769, 65536, 2**31 - 1, -(2**31)])
    more = [generator.integers(0, 150_000, 1500 + i) for i in range(N_SAMPLES - 1)]
    return [array.astype(np.int32) for array in (edges, *more)]


def write(path: str) -> None:
    """Three fields, of which input_ids is the sample."""
    from mindspore.mindrecord import FileWriter

    writer = FileWriter(path, 1, overwrite=True)
    writer.set_header_size(1 << 14)
    writer.set_page_size(1 << 15)
    fields = {"type": "int32", "shape": [-1]}, {"type": "int64", "shape": [-1]}
    writer.add_schema({"input_ids": fields[0], "attention": fields[1], "number": {"type": "int32"}}, "tokens")
    writer.write_raw_data(
        [{"input_ids": ids, "attention": np.ones(3, dtype=np.int64), "number": i} for i, ids in enumerate(samples())]
    )
    writer.commit()


if __name__ == "__main__":
    write(sys.argv[1])
