"""Means and slopes of autocorrelated numbers with honest errors. Pure NumPy; formulas with their sources."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hypocenter.compare.curves.curve import Values

_RHO_MOST = 0.99  # of an estimated autocorrelation: beyond it a sample says nothing about its mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A number, its standard error, and how many independent values it rests on."""

    value: float
    error: float
    n_effective: float

    def beyond(self, chance: float) -> float:
        """Return how large the value had to be to differ from 0 with this (two-sided) probability of error."""
        return t_quantile(chance, self.n_effective - 1) * self.error


def lag_one(values: Values, *, n_fitted: int = 1) -> float:
    """Return the autocorrelation at lag 1, corrected for its bias in short samples, between 0 and 0.99.

    Correction: (1 + 3 rho) / n for a fitted mean (Kendall, Biometrika 41, 1954), (2 + 4 rho) / n for a fitted line.
    """
    n = len(values)
    centred = values - values.mean()
    power = float(centred @ centred)
    if n < 4 or power <= 0.0:
        return 0.0
    rho = float(centred[1:] @ centred[:-1]) / power
    rho += (1 + 3 * rho) / n if n_fitted == 1 else (2 + 4 * rho) / n
    return min(max(rho, 0.0), _RHO_MOST)


def long_run_variance(values: Values, *, n_fitted: int = 1) -> tuple[float, float]:
    """Return (n times the variance of the mean, autocorrelation at lag 1) of a stationary series.

    Prewhitened by an AR(1) (Andrews and Monahan, Econometrica 60, 1992), then Bartlett's kernel (Newey and West,
    Econometrica 55, 1987) with the plug-in bandwidth of Andrews (Econometrica 59, 1991). Limits: no series without a
    finite variance, and none whose memory is longer than about a tenth of it.
    """
    n = len(values)
    centred = values - values.mean()
    rho = lag_one(values, n_fitted=n_fitted)
    white = centred[1:] - rho * centred[:-1] if n > 2 else centred
    inner = lag_one(white)
    bandwidth = 1.1447 * (4 * inner**2 / (1 - inner**2) ** 2 * n) ** (1 / 3)
    lags = min(int(bandwidth), len(white) // 4)
    variance = float(white @ white) / len(white)
    for lag in range(1, lags + 1):
        variance += 2 * (1 - lag / (lags + 1)) * float(white[lag:] @ white[:-lag]) / len(white)
    plain = float(centred @ centred) / max(n - n_fitted, 1)
    return max(variance / (1 - rho) ** 2, plain), rho


def mean_of(values: Values) -> Estimate:
    """Estimate the mean of a stationary, autocorrelated series, with its standard error."""
    n = len(values)
    if n < 2:
        return Estimate(value=float(values.mean()) if n else 0.0, error=np.inf, n_effective=1.0)
    variance, rho = long_run_variance(values)
    return Estimate(
        value=float(values.mean()), error=float(np.sqrt(variance / n)), n_effective=max(n * (1 - rho) / (1 + rho), 1.0)
    )


def level_of(values: Values) -> Estimate:
    """Estimate the mean of a series that may have a slope; its error is that of the residuals of a fitted line."""
    n = len(values)
    if n < 4:
        return mean_of(values)
    at = np.arange(n) - (n - 1) / 2
    residual = values - values.mean() - at * float(at @ values) / float(at @ at)
    variance, rho = long_run_variance(residual, n_fitted=2)
    effective = max(n * (1 - rho) / (1 + rho) - 1, 1.0)
    return Estimate(value=float(values.mean()), error=float(np.sqrt(variance / n)), n_effective=effective)


def slope_of(steps: Values, values: Values) -> Estimate:
    """Estimate the slope of the least-squares line, with an error that allows for autocorrelated residuals."""
    n = len(values)
    centred = steps - steps.mean()
    spread = float(centred @ centred)
    if n < 4 or spread <= 0.0:
        return Estimate(value=0.0, error=np.inf, n_effective=1.0)
    slope = float(centred @ values) / spread
    residual = values - values.mean() - slope * centred
    variance, rho = long_run_variance(residual, n_fitted=2)
    return Estimate(
        value=slope, error=float(np.sqrt(variance / spread)), n_effective=max(n * (1 - rho) / (1 + rho) - 1, 1.0)
    )


def memory_of(values: Values) -> float:
    """Return after how many steps a series has forgotten: its integrated autocorrelation time, at least 1.

    The larger of two: the sum of autocorrelations up to the first lag that is 5 times the sum so far (Sokal 1997), and
    that of an AR(1), (1 + rho) / (1 - rho), whose bias in short series is known and taken out.
    """
    n = len(values)
    centred = values - values.mean() if n else values
    power = float(centred @ centred) if n else 0.0
    if n < 8 or power <= 0.0:
        return 1.0
    size = 1 << (2 * n - 1).bit_length()
    spectrum = np.fft.rfft(centred, size)
    rho = np.fft.irfft(spectrum * np.conj(spectrum), size)[: n // 2] / power
    total = 2 * np.cumsum(rho) - 1
    enough = np.arange(len(total)) >= 5 * total
    summed = float(total[int(np.argmax(enough))] if enough.any() else total.max())
    rho_one = lag_one(values)
    return max(summed, (1 + rho_one) / (1 - rho_one))


@lru_cache(maxsize=512)
def t_quantile(chance: float, freedom: float) -> float:
    """Return what |t| exceeds with this probability, of Student's t; by integration, good to a per cent.

    With t = sqrt(v) tan(a) the density is proportional to cos(a)^(v-1).
    """
    freedom = min(max(freedom, 1.0), 1e4)
    beyond = np.geomspace(1e-7, np.pi / 2, 4000)  # pi/2 - a: dense where the tail is
    density = np.sin(beyond) ** (freedom - 1)
    tail = np.concatenate(([0.0], np.cumsum((density[1:] + density[:-1]) / 2 * np.diff(beyond))))
    at = float(np.interp(chance, tail / tail[-1], beyond))
    return float(np.sqrt(freedom) / np.tan(max(at, 1e-7)))


def running_mean(values: Values, window: int) -> Values:
    """Return the mean of each value and the `window` - 1 before it; the result is shorter by that many."""
    total = np.cumsum(np.concatenate(([0.0], values)))
    return (total[window:] - total[:-window]) / window


def running_median(values: Values, window: int) -> Values:
    """Return the median of the `window` values around each value; windows are strided down to 65 values."""
    half = window // 2
    padded = np.pad(values, half, mode="reflect") if len(values) > half else np.pad(values, half, mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1)[:, :: max(1, (2 * half + 1) // 65)]
    parts = [np.median(windows[i : i + 65536], axis=1) for i in range(0, len(windows), 65536)]
    return np.concatenate(parts)[: len(values)]


def robust_spread(values: Values) -> float:
    """Estimate the standard deviation by the median absolute deviation (times 1.4826, as for a normal distribution)."""
    return float(1.4826 * np.median(np.abs(values - np.median(values)))) if len(values) else 0.0


def change_point(values: Values) -> int:
    """Return where the values are best split into two means (least squares): the index of the first one behind it."""
    n = len(values)
    if n < 2:
        return 0
    left = np.cumsum(values)[:-1]
    counts = np.arange(1, n)
    gain = left**2 / counts + (values.sum() - left) ** 2 / (n - counts)
    return int(np.argmax(gain)) + 1
