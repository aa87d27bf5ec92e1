"""The simulated job: a GPT over a mesh of dp x pp x tp ranks, and the faults that are planted in it."""

from __future__ import annotations

from dataclasses import dataclass

from hypocenter.nouns import Coords, Place

HIDDEN = 4096
VOCABULARY = 50_304
POSITIONS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter of the logical model, and how tensor parallelism splits it."""

    name: str
    shape: tuple[int, ...]
    split: int | None = None  # dimension over tp; None: every tp rank has all of it

    def placement(self) -> str:
        """Over the ranks, as a reading says it."""
        return f"dp=R tp={'R' if self.split is None else f'S({self.split})'}"

    def local_shape(self, tp: int) -> tuple[int, ...]:
        """Of one shard."""
        return tuple(size // tp if dim == self.split else size for dim, size in enumerate(self.shape))


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What is wrong with the job, and the answers that a reader has to find."""

    nan_rank: int  # its local gradient of `nan_param` is NaN at `nan_step`; from the next step on all is NaN
    nan_step: int
    nan_param: str
    drift_rank: int  # its `drift_param` differs from that of its replicas from `drift_step` on
    drift_step: int
    drift_param: str
    missing_rank: int  # left nothing
    cut_rank: int  # its stream of readings was cut in the middle


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job: how many ranks, layers and steps."""

    ranks: int = 512
    layers: int = 24
    steps: int = 50
    tp: int = 8
    pp: int = 4
    digest_every: int = 10

    @property
    def dp(self) -> int:
        """Data-parallel size."""
        return self.ranks // (self.tp * self.pp)

    def coords(self, rank: int) -> Coords:
        """tp runs fastest, pp slowest, as in Megatron."""
        return Coords(tp=rank % self.tp, dp=rank // self.tp % self.dp, pp=rank // (self.tp * self.dp))

    def rank_at(self, *, dp: int, pp: int, tp: int) -> int:
        """The rank at these coordinates."""
        return tp + self.tp * (dp + self.dp * pp)

    def place(self, rank: int) -> Place:
        """Its rank.json."""
        at = self.coords(rank)
        tp, pp, dp = at.tp or 0, at.pp or 0, at.dp or 0
        groups = {
            "tp": tuple(self.rank_at(dp=dp, pp=pp, tp=i) for i in range(self.tp)),
            "dp": tuple(self.rank_at(dp=i, pp=pp, tp=tp) for i in range(self.dp)),
            "pp": tuple(self.rank_at(dp=dp, pp=i, tp=tp) for i in range(self.pp)),
        }
        return Place(
            rank=rank, world_size=self.ranks, local_rank=rank % 8, host=f"node{rank // 8:03d}",
            device=f"cuda:{rank % 8}", device_name="simulated", launcher="torchrun", coords=at, groups=groups,
            source="megatron",
        )  # fmt: skip

    def parameters(self, pp: int) -> list[Parameter]:
        """Of one pipeline stage, in execution order."""
        first, last = self.layers * pp // self.pp, self.layers * (pp + 1) // self.pp
        found = _embeddings() if pp == 0 else []
        for layer in range(first, last):
            found += _layer(f"decoder.layers.{layer}")
        return found + (_head() if pp == self.pp - 1 else [])

    @property
    def faults(self) -> Faults:
        """Faults far from each other: every one has a stage or a replica of its own."""
        at = min(1, self.tp - 1)
        stage = min(1, self.pp - 1)
        return Faults(
            nan_rank=self.rank_at(dp=1, pp=stage, tp=at),
            nan_step=self.steps * 6 // 10,
            nan_param=self.parameters(stage)[-1].name
            if stage < self.pp - 1
            else f"decoder.layers.{self.layers - 1}.mlp.linear_fc2.bias",
            drift_rank=self.rank_at(dp=self.dp - 1, pp=0, tp=0),
            drift_step=self.steps * 4 // 10,
            drift_param="decoder.layers.0.mlp.linear_fc1.weight",
            missing_rank=self.rank_at(dp=2 % self.dp, pp=self.pp - 1, tp=self.tp - 1),
            cut_rank=self.rank_at(dp=0, pp=self.pp - 1, tp=0),
        )


def mesh(ranks: int) -> tuple[int, int]:
    """(tp, pp) for a number of ranks: 8 and 4, or less where that leaves fewer than four replicas."""
    for tp, pp in ((8, 4), (4, 2), (2, 2), (1, 2), (1, 1)):
        if ranks % (tp * pp) == 0 and ranks // (tp * pp) >= 4:
            return tp, pp
    return 1, 1


def _layer(at: str) -> list[Parameter]:
    h = HIDDEN
    return [
        Parameter(name=f"{at}.input_layernorm.weight", shape=(h,)),
        Parameter(name=f"{at}.input_layernorm.bias", shape=(h,)),
        Parameter(name=f"{at}.self_attention.linear_qkv.weight", shape=(3 * h, h), split=0),
        Parameter(name=f"{at}.self_attention.linear_qkv.bias", shape=(3 * h,), split=0),
        Parameter(name=f"{at}.self_attention.linear_proj.weight", shape=(h, h), split=1),
        Parameter(name=f"{at}.self_attention.linear_proj.bias", shape=(h,)),
        Parameter(name=f"{at}.pre_mlp_layernorm.weight", shape=(h,)),
        Parameter(name=f"{at}.pre_mlp_layernorm.bias", shape=(h,)),
        Parameter(name=f"{at}.mlp.linear_fc1.weight", shape=(4 * h, h), split=0),
        Parameter(name=f"{at}.mlp.linear_fc1.bias", shape=(4 * h,), split=0),
        Parameter(name=f"{at}.mlp.linear_fc2.weight", shape=(h, 4 * h), split=1),
        Parameter(name=f"{at}.mlp.linear_fc2.bias", shape=(h,)),
    ]


def _embeddings() -> list[Parameter]:
    return [
        Parameter(name="embedding.word_embeddings.weight", shape=(VOCABULARY, HIDDEN), split=0),
        Parameter(name="embedding.position_embeddings.weight", shape=(POSITIONS, HIDDEN)),
    ]


def _head() -> list[Parameter]:
    return [
        Parameter(name="decoder.final_layernorm.weight", shape=(HIDDEN,)),
        Parameter(name="decoder.final_layernorm.bias", shape=(HIDDEN,)),
        Parameter(name="output_layer.weight", shape=(VOCABULARY, HIDDEN), split=0),
    ]
