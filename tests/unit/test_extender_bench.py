import json
from typing import Any

import pytest

from joulie.apps.extender import rankings
from joulie_lab.apps.bench.extender import figure, tables
from joulie_lab.benchmarks.extender import calls as bench
from joulie_lab.benchmarks.extender.measure import Plan, measure
from joulie_lab.simulation.report.png import png


@pytest.mark.slow
def test_both_extenders_are_measured() -> None:
    """What the times are is the benchmark's business; here they have to be there, and to be shown."""
    said: list[str] = []
    measured = measure(Plan(sizes=(20,), calls=10, rounds=2, fleet=40), said.append)
    assert said == [
        "20 candidates",
        "20 candidates of a performance pod",
        "20 candidates with names of 42 letters",
        "20 candidates of pods that all differ",
        "20 candidates of a performance pod whose namespace limits the power of nodes",
        "20 candidates of a performance pod under power budgets",
        "20 candidates of a performance pod, half of the racks without a watt left",
        "20 candidates with SCORING=marginal",
        "20 candidates with SCORING=marginal, power budgets and limits",
        "20 candidates with SCORING=frugal",
        "20 candidates with SCORING=frugal, power budgets and limits",
    ]
    alone = ("watts", "watts_crowded", "marginal", "marginal_watts", "frugal", "frugal_watts")
    for name in ("joulie", "constants", "performance", "long_names", "different", "policies", *alone):
        for verb in ("filter", "prioritize"):
            found = getattr(measured, name)["20"][verb]
            assert 0.0 < found.p50_ms <= found.p99_ms
    assert measured.ratio_to_constants["20"]["filter"] > 0.0
    (table,) = tables(measured)
    assert ("joulie", "/filter", "20") in [tuple(row[:3]) for row in table.rows]
    assert png(figure(measured)).startswith(b"\x89PNG")


def bodies(names: list[str], size: int, pods: bench.Pods) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Calls of /filter and /prioritize."""
    pairs = bench.requests(names, size, pods)
    return [(called(filtering, "/filter"), called(ranking, "/prioritize")) for filtering, ranking in pairs]


def called(request: bytes, path: str) -> dict[str, Any]:
    head, _, body = request.partition(b"\r\n\r\n")
    assert head.startswith(f"POST {path} HTTP/1.1\r\n".encode())
    found: dict[str, Any] = json.loads(body)
    return found


def test_calls_ask_for_all_names_in_changing_order() -> None:
    names = ["a", "b", "c"]
    offered = [filtering["NodeNames"] for filtering, _ in bodies(names, 3, bench.Pods.ALIKE)]
    assert all(sorted(one) == names for one in offered)
    assert len({tuple(one) for one in offered}) > 1
    assert all(len(filtering["NodeNames"]) == 1 for filtering, _ in bodies(names, 1, bench.Pods.ALIKE))


def test_calls_come_in_pairs_as_kube_scheduler_makes_them() -> None:
    """/prioritize is asked for what /filter let through: all of it for a standard pod, no eco for the other."""
    names = ["perf-0", "eco-1", "perf-2", "eco-3"]
    assert all(filtering == ranking for filtering, ranking in bodies(names, 4, bench.Pods.ALIKE))
    for filtering, ranking in bodies(names, 4, bench.Pods.PERFORMANCE):
        assert filtering["Pod"] == ranking["Pod"]
        assert ranking["NodeNames"] == [name for name in filtering["NodeNames"] if name.startswith("perf")]


def test_pods_that_differ_are_more_than_are_remembered() -> None:
    def kinds(pods: bench.Pods) -> set[str]:
        asked = [filtering["Pod"] for filtering, _ in bodies(["a"], 1, pods)]
        return {json.dumps(pod["spec"]["containers"][0]["resources"]) for pod in asked}

    assert len(kinds(bench.Pods.ALIKE)) == 1
    assert len(kinds(bench.Pods.DIFFERENT)) > rankings._CACHED_KINDS
