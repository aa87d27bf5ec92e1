"""`hypocenter weights`: compare two checkpoints, map their names, convert one into the other's layout."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import click

from hypocenter.cli.answer_format import format_option, print_answer
from hypocenter.cli.output_file import refuse_existing, write_file
from hypocenter.cli.say import say
from hypocenter.compare.pairing.manual_map import ManualMap, draft_map, read_map
from hypocenter.compare.weights.catalogue import read_checkpoint
from hypocenter.compare.weights.checkpoint import Checkpoint
from hypocenter.compare.weights.convert import convert as convert_checkpoint
from hypocenter.compare.weights.diff import ULP, diff_checkpoints
from hypocenter.compare.weights.elements import CASTABLE
from hypocenter.compare.weights.match import match_checkpoints
from hypocenter.compare.weights.targets import NAMINGS, planned
from hypocenter.errors import ConfigError
from hypocenter.report import weights_screen, wording
from hypocenter.report.screen import screen_of, write

EXIT = {"same": 0, "diverged": 1, "cannot-tell": 5}
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_MAP = click.option(
    "--map", "map_file", type=click.Path(path_type=Path), metavar="FILE", help="Pairs of tensors that win (TOML)."
)


@click.group("weights")
def command() -> None:
    """Checkpoints: safetensors, torch, torch.distributed.checkpoint, Megatron-LM, MindSpore; nothing is executed."""


@command.command("diff")
@click.argument("baseline", type=click.Path(path_type=Path))
@click.argument("candidate", type=click.Path(path_type=Path))
@_MAP
@click.option("--ulp", type=click.IntRange(0), default=ULP, show_default=True, metavar="N",
              help="Units in the last place, of the coarser format, that count as agreement.")  # fmt: skip
@click.option("--limit", type=click.IntRange(0), default=weights_screen.ROWS, show_default=True, metavar="N",
              help="Rows shown of each table; 0 for all.")  # fmt: skip
@format_option()
def diff(baseline: Path, candidate: Path, map_file: Path | None, ulp: int, limit: int, format_name: str) -> int:
    """Compare the tensors of CANDIDATE with those of BASELINE, whatever they are called and however they are fused.

    Exit code: 0 the same, 1 they differ, 4 nothing to read, 5 cannot tell (tensors are left over).
    """
    found = diff_checkpoints(read_checkpoint(baseline), read_checkpoint(candidate), _map(map_file), ulp=ulp)
    if format_name != "terminal":
        print_answer("weights diff", found, format_name)
    else:
        write(sys.stdout, weights_screen.render(found, screen_of(sys.stdout), limit))
        if found.unmatched_baseline and found.unmatched_candidate:
            say(f"next: {wording.command('weights', 'map', str(baseline), str(candidate), '-o', 'map.toml')}")
    return EXIT[found.status]


@command.command("map")
@click.argument("baseline", type=click.Path(path_type=Path))
@click.argument("candidate", type=click.Path(path_type=Path))
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), required=True, metavar="FILE", help="Where it is written."
)
@_MAP
def map_(baseline: Path, candidate: Path, out: Path, map_file: Path | None) -> int:
    """Write which tensors of BASELINE and CANDIDATE are the same, to be corrected by hand and given with --map."""
    refuse_existing(out, "map", flag="-o")
    found = match_checkpoints(read_checkpoint(baseline), read_checkpoint(candidate), _map(map_file)).matching
    found = replace(found, pairs=tuple(pair for pair in found.pairs if pair.by != "tied"))
    write_file(out, draft_map(found), "map", flag="-o")
    left = len(found.unmatched_baseline), len(found.unmatched_candidate)
    say(f"{wording.count(len(found.pairs), 'pair')} written to {out}; left over: {left[0]} and {left[1]}")
    return 0 if found.pairs else EXIT["cannot-tell"]


@command.command("convert")
@click.argument("source", type=click.Path(path_type=Path))
@click.option(
    "--like", type=click.Path(path_type=Path), metavar="B", help="A checkpoint whose names and layouts are taken."
)
@click.option("--naming", type=click.Choice(tuple(NAMINGS)), help="Names and layouts of this library.")
@click.option("-o", "--out", type=click.Path(path_type=Path), required=True, metavar="OUT",
              help="A file that ends in .safetensors or .ckpt (MindSpore), or a folder.")  # fmt: skip
@click.option("--dtype", type=click.Choice(CASTABLE), help="Format of what is written; as in SOURCE if not given.")
@click.option("--max-shard-size", default="5GB", show_default=True, metavar="SIZE", help="Of each file: 5GB, 500MB, …")
@_MAP
@click.option("--heads", type=click.IntRange(1), metavar="N", help="Attention heads, if no configuration says.")
@click.option("--groups", type=click.IntRange(1), metavar="N", help="Query groups (key-value heads), likewise.")
def convert(
    source: Path, like: Path | None, naming: str | None, out: Path, dtype: str | None, max_shard_size: str,
    map_file: Path | None, heads: int | None, groups: int | None,
) -> int:  # fmt: skip
    """Rewrite SOURCE with the names, fusions and shapes of another checkpoint or library.

    What is written is read again and compared to the bit.
    """
    if (like is None) == (naming is None):
        raise ConfigError("one of --like and --naming is needed", where="weights convert", fix="--naming hf")
    limit = size_of(max_shard_size)
    given = {name: n for name, n in (("num_attention_heads", heads), ("num_query_groups", groups)) if n}
    checkpoint = _with(read_checkpoint(source), given)
    target = read_checkpoint(like) if like is not None else planned(checkpoint, str(naming))
    done = convert_checkpoint(checkpoint, target, out, manual=_map(map_file), dtype=dtype, max_shard_bytes=limit)
    for note in (*checkpoint.notes, *done.notes):
        say(f"note: {note}")
    what = f"{wording.count(done.n_tensors, 'tensor')}, {wording.byte_size(done.n_bytes)}"
    say(f"{what} in {wording.count(len(done.files), 'file')}, read again: same bits")
    say(f"next: {wording.command('weights', 'diff', str(source), str(out))}")
    return 0


def size_of(text: str) -> int:
    """Return the bytes of `5GB`, `500MB`, `1GiB` or a plain number. Raises ConfigError for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]I?B)?\s*", text, re.IGNORECASE)
    size = int(float(match[1]) * _UNITS[(match[2] or "").upper()]) if match else 0
    if size <= 0:
        raise ConfigError(f"no size can be {text!r}", where="--max-shard-size", fix="--max-shard-size 5GB")
    return size


def _map(path: Path | None) -> ManualMap | None:
    return read_map(path) if path is not None else None


def _with(checkpoint: Checkpoint, given: dict[str, int]) -> Checkpoint:
    return replace(checkpoint, settings={**checkpoint.settings, **given}) if given else checkpoint
