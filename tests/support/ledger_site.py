"""A site over the end of a month: its cycles, and its accounts calculated in another way."""

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from joulie.domain.accounting.factors import FactorKind
from joulie.domain.accounting.journal import Month
from joulie.domain.accounting.records import ENERGY_FIELDS, Cycle, Grouping, PodMeta, PowerQuality, Sample, ZoneSignals
from joulie.domain.grid.series import Series

HOUR_S = 3600.0
JUNE_S = 1_748_736_000.0
"""2025-06-01T00:00Z."""
START_S, END_S, STEP_S, CYCLE_S = JUNE_S - 20 * HOUR_S, JUNE_S + 40 * HOUR_S, 900.0, 600.0
OUTAGE_S = (JUNE_S - 10 * HOUR_S, JUNE_S - 5 * HOUR_S)
MAY = Month(2025, 5)


def new_key(file):
    pem = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    file.write_bytes(pem)
    return file


class Site:
    """Two workloads over the end of a month, their signals, and the same energy calculated in another way."""

    def __init__(self, seed=7, cycle_s=CYCLE_S):
        self.cycle_s = cycle_s
        generator = np.random.default_rng(seed)
        self.steps_s = np.arange(START_S, END_S, STEP_S)
        self.factors = {
            FactorKind.INTENSITY: generator.uniform(50.0, 600.0, len(self.steps_s)),
            FactorKind.PRICE: generator.uniform(-0.05, 0.4, len(self.steps_s)),
            FactorKind.PUE: np.full(len(self.steps_s), 1.2),
            FactorKind.GPU_PUE: np.full(len(self.steps_s), 1.3),
        }
        self.pods = [
            PodMeta(f"uid-{name}", name, name, "Deployment", name, "n1", "DE", None, 1.2, 1.3)
            for name in ("train", "web")
        ]
        self.times_s = np.arange(START_S, END_S + 1.0, cycle_s)
        self.power_w = generator.uniform(20.0, 400.0, (len(self.pods), len(self.times_s), 3))

    def series(self, kind, from_s=START_S, until_s=END_S):
        return Series(self.steps_s, self.factors[kind], END_S).between(from_s, until_s)

    def cycle(self, index):
        now_s = float(self.times_s[index])
        known = (START_S, now_s) if now_s <= OUTAGE_S[0] else None
        if OUTAGE_S[0] < now_s <= OUTAGE_S[1]:
            known = (START_S, OUTAGE_S[0])
        elif now_s > OUTAGE_S[1]:
            known = (OUTAGE_S[1], now_s)
        signals = ZoneSignals(
            self.series(FactorKind.INTENSITY, *known), price=self.series(FactorKind.PRICE, START_S, now_s)
        )
        samples = [
            Sample(pod, *power[index].tolist(), PowerQuality.MODELLED, "cadvisor")
            for pod, power in zip(self.pods, self.power_w, strict=True)
        ]
        return Cycle(now_s, samples, signals={"DE": signals})

    def published(self):
        return {("DE", kind): [self.series(kind)] for kind in (FactorKind.INTENSITY, FactorKind.PRICE)}

    def set(self, kind, from_s, until_s, value):
        self.factors[kind][(self.steps_s >= from_s) & (self.steps_s < until_s)] = value

    def expected(self, pod):
        """Energy, emissions and cost: cumulated trapezoids, interpolated by hand at the steps of the signals."""
        cpu, mem, gpu = (self._step_energy_j(self.power_w[pod, :, part]) for part in range(3))
        joules = (cpu + mem) * self.factors[FactorKind.PUE] + gpu * self.factors[FactorKind.GPU_PUE]
        kwh = joules / 3.6e6
        return {
            "cpu_j": cpu.sum(),
            "energy_j": joules.sum(),
            "emissions_g": kwh @ self.factors[FactorKind.INTENSITY],
            "cost": kwh @ self.factors[FactorKind.PRICE],
        }

    def _step_energy_j(self, power_w):
        edges_s = np.append(self.steps_s, END_S)
        whole = np.concatenate(([0.0], np.cumsum(self.cycle_s * (power_w[1:] + power_w[:-1]) / 2.0)))
        place = np.minimum(((edges_s - START_S) // self.cycle_s).astype(int), len(power_w) - 2)
        rest_s = edges_s - self.times_s[place]
        slope = (power_w[place + 1] - power_w[place]) / self.cycle_s
        return np.diff(whole[place] + power_w[place] * rest_s + slope * rest_s**2 / 2.0)


def month_of(ledger, month):
    return sorted(
        (row.namespace, *(getattr(row.energy, name) for name in ENERGY_FIELDS))
        for row in ledger.usage(Grouping.NAMESPACE, since_s=month.starts_s, until_s=month.ends_s)
    )
