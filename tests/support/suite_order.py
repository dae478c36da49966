"""The order of the whole suite: what needs no control plane comes first, and is reported as soon as it is done."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

import pytest

CONTROL_PLANE = "tests/control_plane/"
LONGEST_FIRST = (
    "tests/golden/test_published_figures.py",
    "tests/release/test_wheels.py",
    "tests/ui/test_web_pages.py",
    "tests/unit/test_ledger.py",
    "tests/unit/test_demo.py",
    "tests/contract/test_ledger_postgres.py",
    "tests/unit/test_accounting_program.py",
    "tests/property/test_engine_properties.py",
    "tests/unit/test_operator_power_budgets.py",
    "tests/contract/test_power_switches.py",
    "tests/unit/test_agent_program.py",
    "tests/ui/test_web_pictures.py",
    "tests/unit/test_grid_controller.py",
    "tests/unit/test_operator_gpu_limits.py",
    "tests/unit/test_bench_openb.py",
    "tests/unit/test_extender_bench.py",
    "tests/unit/test_sleep.py",
    "tests/property/test_ledger_properties.py",
    "tests/contract/test_fake_kubernetes.py",
    "tests/control_plane/test_loop_grid.py",
    "tests/control_plane/test_loop_coexistence.py",
    "tests/control_plane/test_steady_state.py",
    "tests/control_plane/test_loop_drain.py",
    "tests/control_plane/test_loop_budget.py",
    "tests/control_plane/test_experiment.py",
    "tests/control_plane/test_chart.py",
    "tests/control_plane/test_loop_sleep.py",
    "tests/control_plane/test_live_limits.py",
    "tests/control_plane/test_helm_install.py",
    "tests/control_plane/test_scheduling_rate.py",
    "tests/control_plane/test_demo_on_control_plane.py",
    "tests/control_plane/test_loop_profiles.py",
    "tests/control_plane/test_feedback_loop.py",
    "tests/control_plane/test_grid_admission.py",
    "tests/control_plane/test_loop_telemetry.py",
    "tests/control_plane/test_local_control_plane.py",
    "tests/control_plane/test_extender_real_scheduler.py",
    "tests/control_plane/test_prometheus_signals.py",
    "tests/control_plane/test_real_kubernetes_contract.py",
    "tests/control_plane/test_trial.py",
    "tests/control_plane/test_loop_placement.py",
    "tests/control_plane/test_loop_ceilings.py",
    "tests/control_plane/test_loop_accounting.py",
    "tests/control_plane/test_observe_mode.py",
    "tests/control_plane/test_chart_programs.py",
    "tests/control_plane/test_classifier.py",
    "tests/control_plane/test_grid_kueue.py",
    "tests/control_plane/test_dashboard_data.py",
    "tests/control_plane/test_gardener_dashboard.py",
    "tests/control_plane/test_web.py",
    "tests/control_plane/test_api_round_trip.py",
)
"""Files whose tests take long: a worker that begins one of them last keeps the others waiting."""

_CRASH_LINE = 200


def rank(node_id: str) -> tuple[bool, int]:
    """Where a test belongs: by part, then the files that take long, then the others as they were."""
    file = node_id.partition("::")[0]
    place = LONGEST_FIRST.index(file) if file in LONGEST_FIRST else len(LONGEST_FIRST)
    return node_id.startswith(CONTROL_PLANE), place


class FirstPartReport:
    """Says how the tests that need no control plane ended, while those that need one go on."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._started_s = time.monotonic()  # noqa: TID251 - for people who wait
        self._waited_for: set[str] = set()
        self._reports: list[pytest.TestReport] = []

    def expect(self, node_ids: Sequence[str]) -> None:
        """Remember the tests of the first part; nothing is said where there is no second part."""
        first = {node_id for node_id in node_ids if not rank(node_id)[0]}
        self._waited_for = first if len(first) < len(node_ids) else set()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Learn the tests where one process runs them."""
        self.expect([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: object, ids: Sequence[str]) -> None:
        """Learn the tests from a worker; every worker has the same."""
        del node
        if not self._reports:
            self.expect(ids)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what counts as an outcome: the test itself, and what went wrong before or after it."""
        if report.nodeid in self._waited_for and (report.when == "call" or not report.passed):
            self._reports.append(report)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Say how they ended after the last of them."""
        if nodeid in self._waited_for:
            self._waited_for.remove(nodeid)
            if not self._waited_for:
                self._tell()

    def _tell(self) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if terminal is None:
            return
        elapsed_s = time.monotonic() - self._started_s  # noqa: TID251 - for people who wait
        outcomes = Counter(report.outcome for report in self._reports)
        counts = ", ".join(f"{outcomes[outcome]} {outcome}" for outcome in sorted(outcomes))
        terminal.ensure_newline()
        for report in self._reports:
            if report.failed:
                crash = getattr(report.longrepr, "reprcrash", None)
                reason = str(crash.message if crash else report.longrepr).partition("\n")[0][:_CRASH_LINE]
                terminal.write_line(f"FAILED {report.nodeid} - {reason}", red=True)
        terminal.write_line(f"without a control plane: {counts} in {elapsed_s:.0f} s; those that need one go on")
