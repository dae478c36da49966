import pytest

from joulie.apps.extender import bench


@pytest.mark.slow
def test_both_extenders_are_measured() -> None:
    """What the times are is the benchmark's business; here they have to be there, and to be shown."""
    said: list[str] = []
    measured = bench.measure(bench.Plan(sizes=(20,), calls=10, rounds=2), said.append)
    assert said == ["20 candidates", "20 candidates with names of 42 letters"]
    for name in ("joulie", "constants", "long_names"):
        for verb in ("filter", "prioritize"):
            found = measured[name]["20"][verb]
            assert 0.0 < found["p50_ms"] <= found["p99_ms"]
    assert measured["ratio_to_constants"]["20"]["filter"] > 0.0
    assert ("joulie", "/filter", "20") in [row[:3] for row in bench.rows(measured)]
    assert bench.plot(measured).startswith(b"\x89PNG")


def test_calls_ask_for_all_names_in_changing_order() -> None:
    bodies = [request.partition(b"\r\n\r\n")[2] for request in bench._requests("filter", ["a", "b", "c"], 3)]
    assert len(set(bodies)) > 1
    chosen = bench._requests("filter", ["a", "b", "c"], 1)
    assert all(body.count(b'"a"') + body.count(b'"b"') + body.count(b'"c"') == 1 for body in chosen)
    assert all(body.count(b'"a"') == body.count(b'"b"') == body.count(b'"c"') == 1 for body in bodies)
