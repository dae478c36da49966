"""A namespace with 1 kWh a day and a queue of Jobs, for three days, on the real control plane.

Accounting and two replicas of the grid controller are processes with the chart's rights. Time is real; the days are
those of a time zone made for the test, whose clocks are set forward by a day each time. So a day takes 45 s, and the
node draws 330 kW. Jobs run on a KWOK node with room for two of them.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from joulie.adapters.kubernetes.times import parse_rfc3339
from joulie_lab.control_plane import Binaries, LocalControlPlane, kwok_node, wait_for
from joulie_lab.control_plane.ports import free_port
from joulie_lab.control_plane.tools import STAGES
from support.grid_site import write_time_zone
from support.loop import NAMESPACE, PATIENCE_S, Loop, kubectl_joulie

pytestmark = [pytest.mark.control_plane, pytest.mark.slow]

TEAM = "team"
DAY_S = 45
JOBS, JOB_S, AT_ONCE = 24, 4.0, 2
LIMIT_KWH, MAX_W, PUE = 1.0, 330_000.0, 1.1
BUDGET = f"/apis/joulie.io/v1alpha1/namespaces/{TEAM}/energybudgets/daily"
POLICIES = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings"
NOTICED_S = 3.0
"""Until it is noticed that a budget is exhausted, and what is on its way to a node is taken back: 0.07 of a day."""
_MIDNIGHT_MARGIN_S = 300.0

Json = dict[str, Any]


def now_s() -> float:
    return time.time()  # noqa: TID251 - real programs run in real time


@pytest.fixture(scope="module")
def plane(control_plane_binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalControlPlane]:
    """A control plane whose KWOK lets the pods of Jobs run for a while."""
    folder = tmp_path_factory.mktemp("stages")
    for stage in control_plane_binaries[STAGES].glob("*.yaml"):
        content = yaml.safe_load(stage.read_text())
        if content["metadata"]["name"] == "pod-complete":
            content["spec"]["delay"] = {"durationMilliseconds": int(JOB_S * 1000)}
            template = content["spec"]["next"]["statusTemplate"]
            started = "startedAt: {{ $origin.state.running.startedAt | Quote }}"
            content["spec"]["next"]["statusTemplate"] = template.replace("startedAt: {{ $now | Quote }}", started)
        (folder / stage.name).write_text(yaml.safe_dump(content))
    binaries = replace(control_plane_binaries, paths={**control_plane_binaries.paths, STAGES: folder})
    logs = tmp_path_factory.mktemp("budget")
    with LocalControlPlane(binaries=binaries, log_folder=logs, audit=True) as plane:
        yield plane


@dataclass
class Run:
    """When a pod of a Job ran, s since the epoch."""

    start_s: float
    end_s: float = float("inf")


@dataclass
class Seen:
    """What was seen of the namespace."""

    runs: dict[str, Run] = field(default_factory=dict)
    """By the Job's name; a Job that was interrupted would have two."""
    starts_s: dict[str, dict[str, float]] = field(default_factory=dict)
    """When each pod of a Job started, by the Job's name and the pod's UID."""
    suspended_s: dict[str, list[float]] = field(default_factory=dict)
    """When each Job was suspended, by its name."""
    holds: list[tuple[float, bool]] = field(default_factory=list)
    exhausted_s: list[float] = field(default_factory=list)
    """When each day's budget was measured to be exhausted."""
    resumed: list[set[str]] = field(default_factory=list)
    """Jobs that were seen to have been resumed, in order."""
    waiting: dict[str, str] = field(default_factory=dict)
    """Since when Jobs that are suspended wait."""
    used_kwh: dict[str, float] = field(default_factory=dict)
    """Last usage of each period, by its start."""


class Stage:
    """The programs, and the namespace with its budget and queue."""

    def __init__(self, plane: LocalControlPlane, folder: Path) -> None:
        self.loop = Loop(
            plane, "mode=enforce", "grid.enabled=true", "accounting.enabled=true", "grid.admission.mode=policy"
        )
        self.plane = plane
        policies = [item for item in self.loop._rendered if item["kind"] == "MutatingAdmissionPolicy"]
        gating = [item for item in self.loop._rendered if item["metadata"]["name"] == "joulie-grid-gating"]
        plane.kubectl("apply", "-f", "-", input=yaml.safe_dump_all([*policies, *gating]))
        plane.create_nodes([kwok_node("budget-0", allocatable={"cpu": str(AT_ONCE)})])
        plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": TEAM}})
        accounts = f"/api/v1/namespaces/{TEAM}/serviceaccounts"
        wait_for(lambda: plane.request("GET", accounts)["items"], PATIENCE_S, "pods can be created")
        self.folder = folder
        self.seen = Seen()

    def start_accounting(self, turns_s: list[int]) -> None:
        zones = self.folder / "zones"
        before, *after = (-86399, 0, 86399)
        write_time_zone(zones, "Test/Days", before, zip(turns_s, after, strict=True))
        address = f"127.0.0.1:{free_port()}"
        environment = {
            "METRICS_ADDR": address,
            "METRICS_TLS": "false",
            "METRICS_SAMPLING_INTERVAL": "1s",
            "LEDGER_URL": f"sqlite:///{self.folder / 'ledger.db'}",
            "PROMETHEUS_ADDRESS": "none",
            "NODE_DEFAULT_IDLE_POWER": "0",
            "NODE_DEFAULT_MAX_POWER": f"{MAX_W:g}",
            "CARBON_SOURCES": "static",
            "CARBON_STATIC_INTENSITY": "250",
            "PYTHONTZPATH": str(zones),
        }
        self.loop._start("accounting", "accounting", "joulie-accounting", f"http://{address}", environment)

    def start_replicas(self) -> None:
        """Two replicas of the grid controller, under other names after a kill."""
        count = len(self.loop.programs)
        for number in (count, count + 1):
            name, address = f"grid-{number}", f"127.0.0.1:{free_port()}"
            environment = {
                "POD_NAME": name,
                "POD_NAMESPACE": NAMESPACE,
                "METRICS_ADDR": address,
                "METRICS_TLS": "false",
                "KUEUE_ENABLED": "false",
                "CARBON_SOURCES": "static",
                "CARBON_STATIC_INTENSITY": "100",
                # One after the other, so that their order can be seen.
                "RELEASES_PER_SECOND": "5",
                "RELEASE_BURST": "1",
            }
            self.loop._start(name, "grid controller", "joulie-grid", f"http://{address}", environment)

    def kill_replicas(self) -> None:
        for name, program in self.loop.programs.items():
            if name.startswith("grid-") and program.process.running:
                program.process.kill()

    def create_queue(self) -> None:
        container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "1"}}}
        spec = {"containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 0}
        jobs = [
            {"metadata": {"name": f"job-{number:02d}"}, "spec": {"template": {"spec": spec}, "backoffLimit": 0}}
            for number in range(JOBS)
        ]
        for job in jobs:
            self.plane.request("POST", f"/apis/batch/v1/namespaces/{TEAM}/jobs", job)

    def watch_until(self, end_s: float) -> None:
        while now_s() < end_s:
            self.look()
            time.sleep(0.25)

    def look(self) -> None:
        seen = self.seen
        for pod in self.plane.request("GET", f"/api/v1/namespaces/{TEAM}/pods")["items"]:
            statuses = pod["status"].get("containerStatuses", [])
            if not statuses:
                continue
            job, state = pod["metadata"]["labels"]["job-name"], statuses[0]["state"]
            times = state.get("running") or state["terminated"]
            start_s = parse_rfc3339(times["startedAt"])
            seen.starts_s.setdefault(job, {})[pod["metadata"]["uid"]] = start_s
            run = seen.runs.setdefault(job, Run(start_s))
            if "terminated" in state:
                run.end_s = parse_rfc3339(times["finishedAt"])
        self._look_at_jobs()
        status = self.plane.request("GET", BUDGET).get("status", {})
        if "used" in status:
            start_s = parse_rfc3339(status["periodStart"])
            self.seen.used_kwh[status["periodStart"]] = status["used"].get("energyKWh", 0.0)
            assert start_s <= now_s()
        for one in status.get("conditions", []):
            since_s = parse_rfc3339(one["lastTransitionTime"])
            if (one["type"], one["status"]) == ("Exhausted", "True") and since_s not in seen.exhausted_s:
                seen.exhausted_s.append(since_s)
        holding = [one["status"] == "True" for one in status.get("conditions", []) if one["type"] == "Holding"]
        if holding and (not seen.holds or seen.holds[-1][1] != holding[0]):
            seen.holds.append((now_s(), holding[0]))

    def _look_at_jobs(self) -> None:
        jobs = {
            one["metadata"]["name"]: one
            for one in self.plane.request("GET", f"/apis/batch/v1/namespaces/{TEAM}/jobs")["items"]
        }
        since = {
            name: one["metadata"].get("annotations", {}).get("joulie.io/budget-waiting-since")
            for name, one in jobs.items()
        }
        for name, one in jobs.items():
            for condition in one.get("status", {}).get("conditions", []):
                time_s = parse_rfc3339(condition["lastTransitionTime"])
                times_s = self.seen.suspended_s.setdefault(name, [])
                if (condition["type"], condition["status"]) == ("Suspended", "True") and time_s not in times_s:
                    times_s.append(time_s)
        resumed = {name for name in self.seen.waiting if since[name] is None}
        if resumed:
            self.seen.resumed.append(resumed)
        self.seen.waiting = {name: time for name, time in since.items() if time is not None}

    @property
    def holding(self) -> bool:
        return bool(self.seen.holds) and self.seen.holds[-1][1]

    def await_hold(self) -> float:
        """Wait until the budget holds; when it was seen."""

        def holds() -> bool:
            self.look()
            return self.holding

        wait_for(holds, PATIENCE_S, "the budget holds")
        return self.seen.holds[-1][0]


def test_g4_a_kilowatt_hour_a_day_holds_for_three_days_though_both_replicas_are_killed(
    plane: LocalControlPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if now_s() % 86400.0 > 86400.0 - _MIDNIGHT_MARGIN_S:  # the zone's three days would be four
        wait_for(lambda: now_s() % 86400.0 < _MIDNIGHT_MARGIN_S, 2 * _MIDNIGHT_MARGIN_S, "it is past midnight")
    stage = Stage(plane, tmp_path)
    body = {
        "apiVersion": "joulie.io/v1alpha1",
        "kind": "EnergyBudget",
        "metadata": {"name": "daily", "namespace": TEAM},
        "spec": {
            "limits": {"energyKWh": LIMIT_KWH},
            "period": "day",
            "timeZone": "Test/Days",
            "warnAt": [0.5],
            "action": "gate",
        },
    }
    plane.kubectl("create", "-f", "-", input=yaml.safe_dump(body))
    stage.start_replicas()
    first_turn_s = int(now_s()) + 15 + DAY_S
    turns_s = [first_turn_s, first_turn_s + DAY_S]
    stage.start_accounting(turns_s)
    wait_for(lambda: plane.request("GET", BUDGET).get("status", {}).get("used"), PATIENCE_S, "the budget is measured")
    stage.create_queue()

    held_s = [stage.await_hold()]
    # A retry, a further completion, a new Job: all that is new waits.
    pod = {"metadata": {"name": "late"}, "spec": {"containers": [{"name": "main", "image": "none"}]}}
    wait_for(lambda: _gates_pods(plane, pod), PATIENCE_S, "new pods are gated")
    stage.watch_until(turns_s[0])
    let_go_s = [time_s for time_s, holds in stage.seen.holds if not holds and time_s > held_s[0]]
    assert all(time_s >= turns_s[0] for time_s in let_go_s), "it holds until its day is over"
    held_s.append(_hold_after(stage, turns_s[0]))
    stage.kill_replicas()
    stage.start_replicas()
    stage.watch_until(turns_s[1])
    held_s.append(_hold_after(stage, turns_s[1]))
    told = kubectl_joulie(plane, "budget", "-n", TEAM)
    stage.watch_until(now_s() + 2 * JOB_S)

    lines = _report(stage, held_s, turns_s)
    with capsys.disabled():
        sys.stderr.write("\n".join(["", *lines, told]))
    assert "daily" in told


def _hold_after(stage: Stage, turn_s: float) -> float:
    """Wait until the budget has let go after a turn, and holds again; when it was seen to."""

    def let_go() -> bool:
        stage.look()
        return any(time_s >= turn_s and not holds for time_s, holds in stage.seen.holds)

    wait_for(let_go, PATIENCE_S, "the budget lets go when its day turns")
    return stage.await_hold()


def _gates_pods(plane: LocalControlPlane, pod: Json) -> bool:
    made = plane.request("POST", f"/api/v1/namespaces/{TEAM}/pods?dryRun=All", pod)
    return [gate["name"] for gate in made["spec"].get("schedulingGates", [])] == ["joulie.io/budget"]


def _report(stage: Stage, held_s: list[float], turns_s: list[int]) -> list[str]:
    """Check the days one by one; what came of each."""
    runs = stage.seen.runs
    lines = []
    begin_s = 0.0
    for day, held in enumerate(held_s):
        end_s = turns_s[day] if day < len(turns_s) else float("inf")
        of_day = {name: run for name, run in runs.items() if begin_s <= run.start_s < end_s}
        running = [
            name
            for name, run in of_day.items()
            if run.start_s <= held + NOTICED_S and stage.seen.exhausted_s[day] - NOTICED_S <= run.end_s
        ]
        late = [name for name, run in of_day.items() if run.start_s > held + NOTICED_S]
        used_kwh = list(stage.seen.used_kwh.values())[day]
        # What these pods draw in their whole lives; they end, and are sampled, to a second.
        most_kwh = LIMIT_KWH + len(running) * MAX_W * PUE / AT_ONCE * (JOB_S + 2.0) / 3.6e6
        lines.append(
            f"day {day + 1}: used {used_kwh:.3f} kWh of {LIMIT_KWH:g}; {len(of_day)} Jobs started, {len(running)} ran "
            f"when it was exhausted, of at most {most_kwh:.3f} kWh with these; started later: {len(late)}"
        )
        assert late == [], lines
        assert LIMIT_KWH <= used_kwh <= most_kwh, lines
        begin_s = end_s
    order = [sorted(names) for names in stage.seen.resumed]
    lines.append(f"order of resumption: {' '.join(name for names in order for name in names)}")
    for earlier, later in itertools.pairwise(order):
        # They were created in the order of their numbers, so those have waited longer; a new day begins anew.
        assert max(earlier) < min(later) or min(later) < min(earlier), lines
    assert _killed(stage.seen) == [], "no pod that ran was deleted"
    return lines


def _killed(seen: Seen) -> list[str]:
    """Pods that were replaced although they ran when their Jobs were suspended.

    One that gets its node in the moment in which its Job is suspended goes with it: a Job cannot be suspended on the
    condition that its pods have no node.
    """
    return [
        f"{job}: started {start_s}, suspended {seen.suspended_s[job]}"
        for job, starts_s in seen.starts_s.items()
        for start_s in sorted(starts_s.values())[:-1]
        if not any(abs(start_s - suspended_s) <= NOTICED_S for suspended_s in seen.suspended_s[job])
    ]
