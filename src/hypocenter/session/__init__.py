"""The composition root of the recording half: the only place where tap, summary, record and replay meet."""

from __future__ import annotations

from hypocenter.session.start import probe, start_from_env, watch

__all__ = ["probe", "start_from_env", "watch"]
