"""Which modules, at the least, have to compute in float32 for the failed step to be finite."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from hypocenter.replay.cure.rehearsal import Around, Rehearsal
from hypocenter.replay.cure.search import OutOfBudget, smallest
from hypocenter.replay.remedies.fp32_island import island
from hypocenter.tap.tracer import OpTracer

MAX_FOLLOWED = 6  # blamed modules that are put in float32 one after the other before the whole model is searched

Module = Callable[[str], torch.nn.Module | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """An island set with which the step was finite."""

    targets: tuple[str, ...]
    cast_back: bool
    scale: float | None  # loss scale of the replays
    is_minimal: bool


class IslandSearch:
    """Search islands for one failed step. Sets that were replayed once are not replayed again.

    Args:
        rehearsal: of the step.
        module: module path -> module.
        sites: paths of modules that own operations, in execution order.
    """

    def __init__(self, rehearsal: Rehearsal, module: Module, sites: Sequence[str]) -> None:
        self._rehearsal, self._module = rehearsal, module
        self._sites = [site for site in sites if module(site) is not None]
        self._replayed: dict[tuple[float | None, bool, frozenset[str]], bool] = {}
        self._errors: dict[tuple[float | None, bool, frozenset[str]], str] = {}
        self._followed: dict[float | None, list[str]] = {}
        self.is_out_of_budget = False

    @property
    def n_candidates(self) -> int:
        """The number of modules that are searched."""
        return len(self._sites)

    def find(self, blamed: str, scales: Sequence[float | None]) -> Found | None:
        """Return the smallest set at the first of the loss scales, or at a lower one if fewer modules are needed there.

        The modules that the blame names one after the other are tried first, each with its result cast back and left
        in float32; when they do not help, every module of the step is searched, children before parents.

        Args:
            blamed: where the failure starts.
            scales: falling; the last one is a last resort.
        """
        found: list[Found] = []
        try:
            for search in (self._following, self._among_all):
                for scale in scales:
                    if found and scale == scales[-1]:
                        break
                    self._rehearsal.scale = scale
                    if self._is_fine_at(scale):
                        break
                    answer = search(blamed)
                    found += [answer] if answer is not None else []
                    if answer is not None and len(answer.targets) == 1:
                        break
                if found:
                    break
            best = min(found, key=lambda each: len(each.targets), default=None)
            return None if best is None else self._at_the_largest_scale(best, scales[0])
        except OutOfBudget:
            self.is_out_of_budget = True
        return min(found, key=lambda each: len(each.targets), default=None)

    def _is_fine_at(self, scale: float | None) -> bool:
        """Return whether a lower loss scale than that of the failed step is enough: then there is no island to find."""
        failed_at = self._rehearsal.scene.case.loss_scale
        return scale is not None and failed_at is not None and scale < failed_at and self.fixes((), True)

    def _at_the_largest_scale(self, found: Found, wanted: float | None) -> Found:
        """Raise the set's loss scale to where it suffices: by halves from the wanted one, as a scaler backs off."""
        if wanted is None or found.scale is None:
            return found
        while wanted > found.scale:
            self._rehearsal.scale = wanted
            if self.fixes(found.targets, found.cast_back):
                return replace(found, scale=wanted)
            wanted /= 2
        return found

    def island(self, targets: Sequence[str], cast_back: bool) -> Around:
        """Return a function that makes the context of a replay with these modules in float32."""
        modules = [module for path in targets if (module := self._module(path)) is not None]
        return lambda: island(modules, cast_back=cast_back)

    def fixes(self, targets: Sequence[str], cast_back: bool) -> bool:
        """Return whether the step is finite with these modules in float32."""
        key = (self._rehearsal.scale, cast_back, frozenset(targets))
        if key not in self._replayed:
            self._replayed[key] = self._rehearsal.finite(self.island(targets, cast_back))
            self._errors[key] = self._rehearsal.error
        return self._replayed[key]

    def fixes_all(self, cast_back: bool) -> bool:
        """Return whether the step is finite with every module in float32: otherwise precision is not the cause."""
        return self.fixes(self._sites, cast_back)

    @property
    def error_of_all(self) -> str:
        """What the replays with every module in float32 raised, if each did: then they say nothing; else ""."""
        whole = frozenset(self._sites)
        errors = [error for (_, _, targets), error in self._errors.items() if targets == whole]
        return errors[0] if errors and all(errors) else ""

    def _following(self, blamed: str) -> Found | None:
        """Put the blamed module in float32, then the one that is blamed then, and so on; None if that does not help."""
        known = self._followed.setdefault(self._rehearsal.scale, [blamed] if blamed in self._sites else [])
        while known and len(known) <= MAX_FOLLOWED:
            for cast_back in (True, False):
                if self.fixes(known, cast_back):
                    return self._reduced(known, cast_back, guess=len(known))
            following = self._blamed_then(known)
            if following is None:
                break
            known.append(following)
        return None

    def _blamed_then(self, known: Sequence[str]) -> str | None:
        """Where the failure starts with these in float32. Results left in float32 reach further, but a half-precision
        layer may refuse them."""
        for cast_back in (False, True):
            site = self._rehearsal.next_site(self.island(known, cast_back=cast_back))
            if site is not None and site not in known and site in self._sites:
                return site
        return None

    def _among_all(self, blamed: str) -> Found | None:
        known = self._followed.get(self._rehearsal.scale, [])
        rest = sorted((site for site in self._sites if site not in known), key=lambda site: -_depth(site))
        order = [*known, *rest]
        casting = self._reduced(order, True, guess=1)
        if casting is not None and self._extent(casting) == len(casting.targets):
            return casting  # no module with others inside: nothing is smaller
        keeping = self._reduced(order, False, guess=1)
        return min(filter(None, (casting, keeping)), key=self._extent, default=None)

    def _reduced(self, candidates: Sequence[str], cast_back: bool, *, guess: int) -> Found | None:
        result = smallest(candidates, lambda names: self.fixes(names, cast_back), guess=guess)
        self.is_out_of_budget = self.is_out_of_budget or not (result.is_minimal or result.targets is None)
        if result.targets is None:
            return None
        return Found(
            targets=tuple(sorted(result.targets, key=self._sites.index)),
            cast_back=cast_back,
            scale=self._rehearsal.scale,
            is_minimal=result.is_minimal,
        )

    def _extent(self, found: Found) -> int:
        """Count the modules with operations of their own that the islands cover."""
        inside = [f"{target}." if target else "" for target in found.targets]
        return sum(site in found.targets or site.startswith(tuple(inside)) for site in self._sites)


def sites_of(tracer: OpTracer) -> list[str]:
    """Return the paths of the modules that own operations of the forward, in execution order."""
    return list(dict.fromkeys(node.place.site for node in tracer.nodes if node.place.phase == "forward"))


def _depth(site: str) -> int:
    return site.count(".") + 1 if site else 0
