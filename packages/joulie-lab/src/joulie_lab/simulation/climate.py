"""Outdoor temperature: a daily cycle, a slow drift over three days, and noise."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from joulie.domain.units import SECONDS_PER_HOUR, ZERO_CELSIUS_K, FloatArray, finite, non_negative, positive


@dataclass(frozen=True)
class Climate:
    """Parameters of the outdoor temperature; the defaults are the published experiment's (spec: experiment).

    ``T(h) = mean + daily*sin(2*pi*h/24 - 2*pi*lag/24) + slow*sin(2*pi*h/period) + noise``, in degrees Celsius with h in
    hours since the start of the run.

    Attributes:
        mean_c: mean temperature, degC.
        daily_amplitude_k: amplitude of the daily cycle, K.
        daily_lag_h: hour at which the daily cycle rises through zero; its peak is six hours later.
        slow_amplitude_k: amplitude of the slow drift, K.
        slow_period_h: period of the slow drift, h.
        noise_std_k: standard deviation of the noise in each step, K.

    Raises:
        InvalidQuantityError: a parameter is not finite or out of range.
    """

    mean_c: float = 23.0
    daily_amplitude_k: float = 6.0
    daily_lag_h: float = 9.0
    slow_amplitude_k: float = 2.0
    slow_period_h: float = 72.0
    noise_std_k: float = 0.5

    def __post_init__(self) -> None:
        for item in fields(self):
            finite(item.name, getattr(self, item.name))
        finite("mean_c", self.mean_c, minimum=-ZERO_CELSIUS_K)
        positive("slow_period_h", self.slow_period_h)
        non_negative("noise_std_k", self.noise_std_k)

    def outdoor_k(self, n_steps: int, step_s: float, rng: np.random.Generator) -> FloatArray:
        """Outdoor temperature at the start of every step, K, shape ``(n_steps,)``.

        Args:
            n_steps: number of steps.
            step_s: length of a step, s.
            rng: source of one normal draw per step, in step order. The published runs use ``default_rng(seed + 1)``.
        """
        positive("step_s", step_s)
        hour = np.arange(n_steps) * (step_s / SECONDS_PER_HOUR)
        day = np.sin(2.0 * np.pi * (hour - self.daily_lag_h) / 24.0)
        slow = np.sin(2.0 * np.pi * hour / self.slow_period_h)
        noise_k = rng.normal(0.0, self.noise_std_k, n_steps)
        mean_k = self.mean_c + ZERO_CELSIUS_K
        outdoor_k: FloatArray = mean_k + self.daily_amplitude_k * day + self.slow_amplitude_k * slow + noise_k
        return outdoor_k
