"""Outermost calls of functions that torch.func has transformed (grad, vmap): each is noted as one operation.

Inside a transform tensors have no numbers that could be noted one by one. What goes in and what comes out has, and the
whole call can be done again, under a trace that sees every operator below the transforms.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from hypocenter.tap.own_frame import RAISED, hear
from hypocenter.tap.source import user_frame
from hypocenter.tap.state import capture_ambient, capture_rng
from hypocenter.tap.tape import Event
from hypocenter.tap.user_code import UserCode

_level: Callable[[], object] = torch._C._functorch.peek_interpreter_stack  # type: ignore[attr-defined]


class TransformedCall(functools.partial[Any]):
    """What a replay calls again: the user's code runs inside, so its operations have lines of their own."""


class Transforms:
    """Notes calls of transformed functions on the tapes of the program's own operations.

    Args:
        user_code: notes what comes before and after them.
        on_output: told of what a call has given, and whether gradients are among it.
        fail: told why nothing is noted any more.
    """

    def __init__(
        self, user_code: UserCode, on_output: Callable[[Any, bool], None], fail: Callable[[str], None]
    ) -> None:
        self._user_code, self._on_output, self._fail = user_code, on_output, fail
        self._is_off = False
        self._is_inside = self._has_gradients = False

    def attach(self) -> Callable[[], None]:
        """Start watching; returns the undo."""
        from torch._functorch import eager_transforms, vmap

        if not (hasattr(vmap, "vmap_impl") and hasattr(eager_transforms, "grad_and_value_impl")):
            return lambda: None  # another version of torch: its transforms are not seen
        gradients, values, mapped = eager_transforms.grad_impl, eager_transforms.grad_and_value_impl, vmap.vmap_impl

        def of_gradients(*given: Any) -> Callable[[Any], None] | None:
            """Hear a call that is given (func, argnums, has_aux, args, kwargs)."""
            return self._begin(TransformedCall(_of_grad, gradients, given[:3]), given[3], given[4], is_grad=True)

        def of_values(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[Any], None] | None:
            """Hear a call that is given the same behind a decorator."""
            if kwargs or len(args) != 5:
                return None
            return self._begin(TransformedCall(_of_grad, values, args[:3]), args[3], args[4], is_grad=True)

        def of_vmap(*given: Any) -> Callable[[Any], None] | None:
            """Hear a call that is given (func, in_dims, out_dims, randomness, chunk_size, args, kwargs)."""
            return self._begin(TransformedCall(mapped, *given[:5]), given[5], given[6], is_grad=False)

        undo = [
            hear(eager_transforms, "grad_impl", of_gradients),
            hear(eager_transforms, "grad_and_value_impl", of_values),
            hear(vmap, "vmap_impl", of_vmap),
        ]

        def detach() -> None:
            for each in reversed(undo):
                each()

        return detach

    def _begin(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, is_grad: bool
    ) -> Callable[[Any], None] | None:
        if self._is_inside:
            self._has_gradients |= is_grad
            return None
        if self._is_off or _level() is not None or not self._user_code.is_active:
            return None
        try:
            return self._noted(function, args, kwargs, is_grad=is_grad)
        except Exception as error:
            self._switch_off(error)
            return None

    def _noted(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, is_grad: bool
    ) -> Callable[[Any], None]:
        self._is_inside, self._has_gradients = True, is_grad
        self._user_code.has_met_func = True
        self._user_code.make_room()
        frame = user_frame(sys._getframe(1))
        event = Event(
            function=function, ambient=capture_ambient(), rng=capture_rng(), code=frame.f_code if frame else None,
            line=frame.f_lineno if frame else 0,
        )  # fmt: skip
        self._user_code.suspend()

        def end(result: Any) -> None:
            self._is_inside = False
            try:
                if result is not RAISED:
                    self._user_code.note_call(event, args, kwargs, result)
                    self._on_output(result, self._has_gradients)
                self._user_code.resume()
            except Exception as error:
                self._switch_off(error)

        return end

    def _switch_off(self, error: Exception) -> None:
        """Note no more calls after an error of ours: the user's call must not fail because of us."""
        self._is_off, self._is_inside = True, False
        self._fail(f"calls of torch.func are not noted any more: {error!r}")


def _of_grad(target: Callable[..., Any], told: tuple[Any, ...], *args: Any, **kwargs: Any) -> Any:
    return target(*told, args, kwargs)
