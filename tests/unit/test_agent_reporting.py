"""What the agent writes to the API, and above all what it does not."""

import asyncio
from typing import Any

import msgspec

from joulie.adapters.kubernetes.api.v1alpha1 import ControlOutcome, ControlStatus, NodeHardwareSpec, NodeHardwareStatus
from joulie.adapters.kubernetes.errors import NotFoundError
from joulie.apps.agent.outcome import Outcome
from joulie.apps.agent.reporting import ControlReport, Reporter
from joulie.apps.agent.views import HardwareView, NodeView, TwinView

CAPPED = Outcome("rapl", ControlOutcome.APPLIED, "2 x 123 W in force")
NO_GPU = Outcome("none", ControlOutcome.NONE, "the node has no GPU")
FAILED = Outcome("rapl", ControlOutcome.ERROR, "input/output error")


class Api:
    """Stands for `KubeClient`."""

    def __init__(self) -> None:
        self.writes: list[tuple[str, dict[str, Any]]] = []
        self.gone = False

    async def apply(self, resource: Any, name: str, body: dict[str, Any], **options: Any) -> None:
        if self.gone:
            raise NotFoundError(404, "NotFound", "gone", what="patch", hint="")
        assert options["field_manager"] == "joulie-agent"
        self.writes.append((options.get("subresource", ""), body))

    def stored(self) -> ControlStatus:
        """What the API would hold after the last write."""
        return msgspec.convert(self.writes[-1][1]["status"]["controlStatus"], ControlStatus)


class Bench:
    def __init__(self) -> None:
        self.api = Api()
        self.now_s = 1_000_000.0
        self.passed_s = 0.0
        self.reporter = Reporter(self.api, "n1", lambda: self.now_s, clock=lambda: self.passed_s)  # type: ignore[arg-type]

    def control(self, twin: TwinView, cpu: Outcome, generation: int | None = 1) -> int:
        """Number of writes that a report takes."""
        before = len(self.api.writes)
        asyncio.run(self.reporter.control(twin, ControlReport(cpu, NO_GPU, generation)))
        return len(self.api.writes) - before

    def hardware(self, stored: HardwareView | None, node: NodeView | None = None) -> int:
        before = len(self.api.writes)
        asyncio.run(self.reporter.hardware(stored, node, NodeHardwareStatus()))
        return len(self.api.writes) - before


def test_only_control_status_is_applied() -> None:
    bench = Bench()
    assert bench.control(TwinView("n1"), CAPPED) == 1
    subresource, body = bench.api.writes[0]
    assert (subresource, list(body), list(body["status"])) == ("status", ["status"], ["controlStatus"])


def test_unchanged_result_keeps_its_time_and_is_not_written_again() -> None:
    bench = Bench()
    bench.control(TwinView("n1"), CAPPED)
    twin = TwinView("n1", reported=bench.api.stored())
    bench.now_s += 3600.0
    assert bench.control(twin, CAPPED) == 0
    assert bench.control(twin, FAILED) == 1
    status = bench.api.stored()
    assert status.cpu is not None
    assert status.gpu is not None
    assert twin.reported is not None
    assert twin.reported.gpu is not None
    # Only the part that changed has a new time.
    assert status.cpu.updated_at == "1970-01-12T14:46:40Z"
    assert status.gpu.updated_at == twin.reported.gpu.updated_at


def test_write_is_not_repeated_before_the_cache_shows_it() -> None:
    bench = Bench()
    twin = TwinView("n1")
    assert bench.control(twin, CAPPED) == 1
    bench.passed_s += 5.0
    assert bench.control(twin, CAPPED) == 0


def test_twin_made_anew_is_told_again() -> None:
    bench = Bench()
    assert bench.control(TwinView("n1"), CAPPED) == 1
    assert bench.control(TwinView("n1"), CAPPED) == 1


def test_report_names_the_generation_that_it_was_made_for() -> None:
    bench = Bench()
    bench.control(TwinView("n1"), CAPPED, generation=3)
    assert bench.api.stored().observed_generation == 3
    # The same result for another spec is another report, and so is one for no spec.
    assert bench.control(TwinView("n1", reported=bench.api.stored()), CAPPED, generation=4) == 1
    assert bench.control(TwinView("n1", reported=bench.api.stored()), CAPPED, generation=None) == 1
    assert bench.api.stored().observed_generation is None


def test_deleted_twin_needs_no_report() -> None:
    bench = Bench()
    bench.api.gone = True
    assert bench.control(TwinView("n1"), CAPPED) == 0


def test_hardware_is_owned_by_its_node_and_written_once() -> None:
    bench = Bench()
    assert bench.hardware(None, NodeView("uid-1", {}, {})) == 2
    owner = bench.api.writes[0][1]["metadata"]["ownerReferences"][0]
    assert owner == {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-1"}
    assert bench.hardware(None) == 0
    assert bench.hardware(HardwareView(NodeHardwareSpec(node_name="n1"), NodeHardwareStatus())) == 0
    # Gone again, without the agent ever having seen it; the clock was set back meanwhile.
    bench.passed_s += 60.0
    bench.now_s -= 3600.0
    assert bench.hardware(None) == 2
