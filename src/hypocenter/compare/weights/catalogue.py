"""Which kinds of checkpoint there are, and how the kind of a path is told: by what is in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hypocenter.catalogue import Catalogue, about
from hypocenter.compare.weights.checkpoint import Checkpoint, CheckpointError
from hypocenter.recognising import recognised, unknown

Accepts = Callable[[Path], bool]
Read = Callable[[Path], Checkpoint]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """One kind of checkpoint. `order`: readers with a lower one are asked first."""

    name: str
    about: str
    order: int
    accepts: Accepts
    read: Read


READERS: Catalogue[Reader] = Catalogue("hypocenter.compare.weights.readers", "hypocenter.weight_readers")


def reader(name: str, *, order: int, accepts: Accepts) -> Callable[[Read], Read]:
    """Register a function as the reader of this kind; the first line of its docstring says what is read."""
    return READERS.adding(
        name, lambda read: Reader(name=name, about=about(read), order=order, accepts=accepts, read=read)
    )


def read_checkpoint(path: Path | str) -> Checkpoint:
    """Read names, shapes and places of all tensors; values are only read when they are asked for.

    Raises:
        CheckpointError: there is none, it is damaged, or it holds what would have to be executed.
    """
    path = Path(path)
    try:
        found = _chosen(path).read(path)
    except OSError as error:
        raise CheckpointError(
            "the checkpoint cannot be opened", where=str(path), why=error.strerror or str(error),
            fix="give a file, or the folder that holds its files",
        ) from error  # fmt: skip
    except (MemoryError, RecursionError) as error:
        raise CheckpointError("the checkpoint is damaged", where=str(path), why=type(error).__name__) from error
    if not found.tensors:
        raise CheckpointError(
            "no tensor is in this checkpoint", where=str(path), why=f"read as {found.kind}; {'; '.join(found.notes)}"
        )
    return found


def _chosen(path: Path) -> Reader:
    path.stat()  # raises FileNotFoundError
    found = recognised(READERS, path)
    if found is not None:
        return found
    if (path / "run.json").is_file():
        raise CheckpointError(
            "this recording holds no weights", where=str(path), why="it was made without --save-initial-weights",
            fix="record it again: hypocenter run --save-initial-weights ...",
        )  # fmt: skip
    fix = "give a .safetensors file, what torch.save wrote, or the folder of a checkpoint"
    raise unknown(CheckpointError, "kind of checkpoint", READERS, where=path, fix=fix)
