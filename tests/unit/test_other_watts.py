"""What no limit of a node reaches, from the operator's sources of power."""

import numpy as np
import pytest

from joulie.apps.operator.budgets.other_watts import APART_S, INTERVAL_S, OtherWatts
from joulie.domain.capping.other_power import SAMPLES
from joulie.domain.control_power import SourceReadings

FULL_W = np.array([1000.0, 1000.0])
NODES = ("a", "b")


def readings(
    now_s: float, whole: str = "platform", parts: str = "agents", apart_s: float = 0.0
) -> list[SourceReadings]:
    """Of a, whose whole draws 150 W more than its parts; nothing is read of b."""
    return [
        SourceReadings.of(whole, NODES, {"a": (now_s, 1100.0)}),
        SourceReadings.of(parts, NODES, {"a": (now_s - apart_s, 950.0)}),
    ]


def learned(**of: object) -> list[float]:
    other, now_s = OtherWatts(), 0.0
    for _ in range(SAMPLES):
        now_s += INTERVAL_S
        other.watts(NODES, readings(now_s, **of), FULL_W, 0.2, now_s)  # type: ignore[arg-type]
    return other.watts(NODES, [], FULL_W, 0.2, now_s).tolist()


def test_the_difference_of_whole_node_and_devices_takes_the_place_of_the_stated_share() -> None:
    assert learned() == [150.0, 200.0]
    assert learned(whole="platform", parts="node-exporter+dcgm") == [150.0, 200.0]


@pytest.mark.parametrize(
    "of", [{"apart_s": APART_S + 1.0}, {"whole": "kepler"}, {"parts": "agents+model"}, {"parts": "platform+dcgm"}]
)
def test_readings_that_do_not_tell_leave_the_stated_share(of: dict[str, object]) -> None:
    """Of different moments; without a whole node; with a part that is a model; with parts that are the whole node."""
    assert learned(**of) == [200.0, 200.0]


def test_a_history_is_learned_once_a_minute_and_follows_its_node() -> None:
    other = OtherWatts()
    for step in range(10):
        other.watts(NODES, readings(100.0 + step), FULL_W, 0.2, 100.0 + step)
    assert other.watts(NODES, [], FULL_W, 0.2, 109.0).tolist() == [200.0, 200.0], "one sample is not enough"
    for step in range(SAMPLES):
        now_s = 200.0 + INTERVAL_S * step
        other.watts(NODES, readings(now_s), FULL_W, 0.2, now_s)
    assert other.watts(("new", "a"), [], FULL_W, 0.2, 500.0) == pytest.approx([200.0, 150.0], rel=1e-3)
