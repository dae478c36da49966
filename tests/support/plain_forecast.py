"""Joulie's forecast by its definition, a value at a time: slow, and written without a look at the fast one."""

from functools import cache

import numpy as np

DAY = 24
SHAPE = ((0, 2.0), (1, 1.0), (3, 1.0), (6, 0.7), (12, 0.5), (24, 0.5))


class PlainForecast:
    """The forecast of hourly values from a Monday on, made at the last of them."""

    def __init__(self, values, steps):
        self.values = values
        self.steps = steps
        self.now = len(values) - 1
        self.learned_until = DAY * (len(values) // DAY)
        self.usual, self.distance, self.of_origin = cache(self._usual), cache(self._distance), cache(self._of_origin)

    def expected(self):
        models = (self.by_model(7, 20.0) + self.by_model(14, 120.0)) / 2.0
        return np.append(self.values[self.now], 0.85 * models + 0.15 * self.similar())

    def at(self, hour):
        return self.values[hour if hour >= 0 else hour % DAY]

    def _usual(self, hour, days):
        return np.mean([self.at(hour - DAY * back) for back in range(days)])

    def _distance(self, hour, days):
        return self.values[hour] - self.usual(hour - DAY, days) if hour >= 0 else 0.0

    def _of_origin(self, origin, days):
        before = [self.at(origin - ago) for ago in range(7 * DAY)]
        distances = [self.distance(origin - ago, days) for ago in range(25)]
        return [
            *(distances[ago] for ago in (0, 1, 3, 12, 24)),
            np.mean(distances[:6]),
            np.mean(distances[:24]),
            np.mean(before[:DAY]) - np.mean(before),
        ]

    def features(self, origin, lead, days):
        target, back = origin + lead, -(-lead // DAY)
        same_time = target - back * DAY
        usual = self.usual(same_time, days)
        angle = 2.0 * np.pi * target / DAY
        return [
            usual,
            *self.of_origin(origin, days),
            usual - self.usual(origin - DAY, days),
            self.at(same_time) - usual,
            self.usual(same_time, 3) - usual,
            self.at(target - 7 * -(-back // 7) * DAY) - usual,
            weekend(target) - 2.0 / 7.0,
            weekend(target) - weekend(origin),
            *(wave(times * angle) for times in (1, 2) for wave in (np.sin, np.cos)),
            1.0,
        ]

    def coefficients(self, lead, days, half_life_days):
        targets = range(DAY + lead, self.learned_until)
        n_features = len(self.features(self.now, lead, days))
        examples = np.array([self.features(target - lead, lead, days) for target in targets]).reshape(-1, n_features)
        prior = np.zeros(n_features)
        prior[:2] = 1.0, fading(lead)
        learned_days = self.learned_until // DAY
        weights = np.array([0.5 ** ((learned_days - 1 - target // DAY) / half_life_days) for target in targets])
        squares = examples.T @ (weights[:, None] * examples)
        diagonal = np.diag(squares) * (1.0 + (2.0 / learned_days) ** 2)
        np.fill_diagonal(squares, diagonal + 1e-9 * max(diagonal.max(), 1.0))
        missed = self.values[targets.start : max(targets.start, targets.stop)] - examples @ prior
        return prior + np.linalg.solve(squares, examples.T @ (weights * missed))

    def by_model(self, days, half_life_days):
        raw = {lead: self.coefficients(lead, days, half_life_days) for lead in range(1, self.steps)}
        return np.array(
            [
                np.mean([raw[other] for other in self.near(lead)], axis=0) @ self.features(self.now, lead, days)
                for lead in raw
            ]
        )

    def near(self, lead):
        """Lead times whose coefficients are averaged."""
        return [
            other
            for other in range(1, self.steps)
            if abs(other - lead) <= min(6, lead - 1) and (other - 1) // DAY == (lead - 1) // DAY
        ]

    def similar(self):
        """What followed similar hours of the past."""
        now, leads = self.now, np.arange(1, self.steps)
        usual = np.array([self.usual(now + lead - -(-lead // DAY) * DAY, 14) for lead in leads])
        persisting = usual + self.distance(now, 14) * fading(leads)
        hours = [now - DAY * back + off for back in range(1, 181) for off in (-1, 0, 1)]
        past = [hour for hour in hours if DAY <= hour < now - self.steps + 2]
        if len(past) < 20:
            return persisting
        scale = np.mean([self.distance(hour, 14) ** 2 for hour in past]) or 1.0
        unlike = np.array([self.unlike(hour) for hour in past])
        ages = (now - np.array(past)) / DAY
        weights = np.exp(-(unlike - unlike.min()) / (2.0 * scale)) * 0.5 ** (ages / 90.0)
        followed = [
            [self.distance(hour + lead, 14) - self.distance(hour, 14) * fading(lead) for lead in leads] for hour in past
        ]
        return persisting + weights @ followed / weights.sum()

    def unlike(self, hour):
        return sum(
            (weight * (self.distance(hour - ago, 14) - self.distance(self.now - ago, 14))) ** 2 for ago, weight in SHAPE
        )


def weekend(hour):
    return float(hour // DAY % 7 >= 5)


def fading(lead):
    return np.exp(-lead / 6.0)
