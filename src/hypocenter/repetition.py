"""How often something is done again before anybody is accused of having computed it wrong once."""

from __future__ import annotations

LEAST = 5  # times that it came to the same bits, others than the run's: with fewer nobody is accused
MANY = 14  # times: what comes out otherwise once in five times would have shown, 0.8 ** 14 < 0.05
ENOUGH = 59  # times: what comes out otherwise once in twenty times would have shown, 0.95 ** 59 < 0.05
