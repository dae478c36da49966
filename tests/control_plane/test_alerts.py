"""The chart's alerts, tried by promtool on series that call for them and on series that do not."""

import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import yaml

RULES = Path(__file__).parents[2] / "deploy/helm/joulie/files/rules/joulie.yaml"
GROUPS = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
ALERTS = {rule["alert"]: rule for group in GROUPS for rule in group["rules"]}
NODE = {"node": "gpu-1"}
CPU = NODE | {"subsystem": "cpu"}
BUDGET = {"namespace": "ml", "budget": "daily"}
CALM, SOON, LATE = "4m", "14m", "2h"


@dataclass(frozen=True)
class Case:
    """Series, by the minute in promtool's notation, and the labels of the alert that they call for.

    Attributes:
        alert: its name.
        series: by series.
        at: when it is looked at.
        fires: labels of the alert that fires then, beside its severity; None where it does not.
        summary: its text.
    """

    alert: str
    series: dict[str, str]
    at: str = SOON
    fires: dict[str, str] | None = None
    summary: str = field(default="")


BLOCKED = 'joulie_agent_control{node="gpu-1",subsystem="cpu",result="blocked"}'
CLOCK = 'joulie_agent_control{node="gpu-1",subsystem="clock",result="error"}'
WANTED = 'joulie_operator_node_cap_wanted_percent{node="gpu-1",subsystem="cpu"}'
IN_FORCE = 'joulie_operator_node_cap_in_force_percent{node="gpu-1",subsystem="cpu"}'
STALE = 'joulie_extender_nodes{twin="stale",pod="extender-a"}'
PODS = 'joulie_operator_node_blocking_pods{node="gpu-1"}'
ECO = 'joulie_operator_node_state{node="gpu-1",state="ActiveEco"}'
USED = 'joulie_energy_budget_used_ratio{namespace="ml",budget="daily"}'
UNTIL = "joulie_ledger_accounted_until_timestamp_seconds"
FAILED, FINE = (f'joulie_accounting_cycles_total{{result="{result}"}}' for result in ("error", "ok"))
FAIL_OPEN = 'apiserver_admission_webhook_fail_open_count{name="pods.grid.joulie.io",type="admit"}'
SAVED = 'joulie_accounting_holdout_saved_ratio{bound="high"}'
NOT_PAYING = "joulie_operator_holdout_stopped_paying_workloads"
TRIALS = 'joulie_operator_trials{reason="GuardBroken"}'
MEASURED, LIMIT, MISSING, ENFORCED = (
    f'joulie_operator_power_budget_{name}{{budget="hall"}}'
    for name in ("measured_watts", "limit_watts", "missing_watts", "enforced")
)
CAUSE = 'joulie_operator_power_budget_limit_cause{budget="hall",cause="invalid"}'
FAILED_NODES = 'joulie_operator_sleep_nodes{state="failed",mode="enforce"}'
UNAVAILABLE = 'aggregator_unavailable_apiservice{name="v1alpha1.energy.joulie.io"}'
EXPIRY = "joulie_grid_webhook_certificate_expiry_seconds"

CASES = [
    Case("JoulieAgentBlocked", {BLOCKED: "1x60"}, CALM),
    Case(
        "JoulieAgentBlocked",
        {BLOCKED: "1x60"},
        fires=CPU | {"result": "blocked"},
        summary="The caps of gpu-1 are not enforced",
    ),
    Case("JoulieAgentBlocked", {BLOCKED.replace("blocked", "applied"): "1x60"}),
    Case("JoulieAgentBlocked", {BLOCKED: "1x5 _x60"}),
    Case(
        "JoulieAgentBlocked",
        {CLOCK: "1x60"},
        fires=NODE | {"subsystem": "clock", "result": "error"},
        summary="The caps of gpu-1 are not enforced",
    ),
    Case("JoulieCapsNotInForce", {WANTED: "60x60", IN_FORCE: "60x60"}),
    Case("JoulieCapsNotInForce", {WANTED: "60x60", IN_FORCE: "100x5 60x60"}),
    Case(
        "JoulieCapsNotInForce",
        {WANTED: "60x60", IN_FORCE: "100x60"},
        fires=CPU,
        summary="A cap of gpu-1 is not in force",
    ),
    Case("JoulieTwinStale", {STALE: "0x60"}),
    Case("JoulieTwinStale", {STALE: "3x60"}, fires={"twin": "stale"}, summary="3 nodes have a stale NodeTwin"),
    Case("JouliePerformancePodOnEco", {PODS: "2x60", ECO: "0x60"}),
    Case("JouliePerformancePodOnEco", {PODS: "0x60", ECO: "1x60"}),
    Case(
        "JouliePerformancePodOnEco",
        {PODS: "2x60", ECO: "1x60"},
        fires=NODE,
        summary="2 pods that need full power run under the caps of gpu-1",
    ),
    *(
        Case(
            "JoulieSourceDown",
            {f'joulie_{program}_source_up{{source="prometheus"}}': up},
            fires=fires,
            summary="The source prometheus does not answer",
        )
        for program in ("operator", "accounting")
        for up, fires in (("0x60", {"source": "prometheus"}), ("1x60", None), ("0x5 1x60", None))
    ),
    *(
        Case(
            "JoulieGridSignalMissing",
            {'joulie_grid_signal_missing{measure="carbon",zone="DE"}': missing},
            at="20m",
            fires=fires,
            summary="No carbon signal of DE",
        )
        for missing, fires in (("1x60", {"measure": "carbon", "zone": "DE"}), ("0x60", None))
    ),
    Case("JoulieLedgerBehind", {UNTIL: "0+60x60", FINE: "0+2x60"}),
    Case("JoulieLedgerBehind", {UNTIL: "0x60"}, CALM),
    Case("JoulieLedgerBehind", {UNTIL: "0x60"}, "20m", fires={}, summary="The ledger is behind"),
    Case("JoulieLedgerBehind", {FAILED: "0+2x60"}, fires={}, summary="The ledger is behind"),
    Case("JoulieLedgerBehind", {FAILED: "0+1x60", FINE: "0+2x60", UNTIL: "0+60x60"}),
    Case("JoulieBudgetNear", {USED: "0.8x60"}),
    Case("JoulieBudgetNear", {USED: "1.2x60"}),
    Case("JoulieBudgetNear", {USED: "0.95x60"}, fires=BUDGET, summary="EnergyBudget ml/daily is 95% used"),
    Case("JoulieBudgetOver", {USED: "0.95x60"}),
    Case("JoulieBudgetOver", {USED: "1.2x60"}, fires=BUDGET, summary="EnergyBudget ml/daily is exhausted"),
    Case("JoulieTrialEnded", {TRIALS: "0x60", TRIALS.replace("GuardBroken", "Completed"): "1x60"}),
    Case(
        "JoulieTrialEnded",
        {TRIALS: "0x5 1x60"},
        fires={"reason": "GuardBroken"},
        summary="A PowerTrial does not run (GuardBroken)",
    ),
    Case("JoulieLimitStoppedPaying", {NOT_PAYING: "0x120"}, LATE),
    Case(
        "JoulieLimitStoppedPaying",
        {NOT_PAYING: "2x120"},
        LATE,
        fires={},
        summary="GPU limits of 2 workloads have stopped paying",
    ),
    Case("JoulieDeferralStoppedPaying", {SAVED: "0.2x120", SAVED.replace("high", "low"): "-0.1x120"}, LATE),
    Case(
        "JoulieDeferralStoppedPaying",
        {SAVED: "0.002x120"},
        LATE,
        fires={},
        summary="Waiting for the grid saves at most 0.2% of the emissions",
    ),
    Case("JoulieWebhookFailing", {FAIL_OPEN: "7x60"}),
    Case(
        "JoulieWebhookFailing",
        {FAIL_OPEN: "0+1x60"},
        fires={"name": "pods.grid.joulie.io"},
        summary="The API server cannot call Joulie's webhook",
    ),
    Case("JoulieWebhookFailing", {FAIL_OPEN.replace("grid.joulie", "others"): "0+1x60"}),
    Case("JouliePowerBudgetOver", {MEASURED: "900x60", LIMIT: "800x60", ENFORCED: "0x60"}),
    Case("JouliePowerBudgetOver", {MEASURED: "900x12 700x60", LIMIT: "800x60", ENFORCED: "1x60"}),
    Case(
        "JouliePowerBudgetOver",
        {MEASURED: "100x60", LIMIT: "80x60", ENFORCED: "1x60"},
        fires={"budget": "hall"},
        summary="The nodes of PowerBudget hall draw more than its limit",
    ),
    Case("JouliePowerBudgetInfeasible", {MISSING: "100x60", ENFORCED: "0x60"}),
    Case(
        "JouliePowerBudgetInfeasible",
        {MISSING: "100x60", ENFORCED: "1x60"},
        fires={"budget": "hall"},
        summary="PowerBudget hall cannot be kept",
    ),
    Case("JouliePowerBudgetInvalid", {CAUSE.replace("invalid", "spec"): "1x60"}),
    Case(
        "JouliePowerBudgetInvalid",
        {CAUSE: "1x60"},
        fires={"budget": "hall"},
        summary="A part of PowerBudget hall cannot be read",
    ),
    Case("JoulieNodeDoesNotWake", {FAILED_NODES.replace("enforce", "observe"): "1x60"}),
    Case("JoulieNodeDoesNotWake", {FAILED_NODES: "0x60"}),
    Case("JoulieNodeDoesNotWake", {FAILED_NODES: "2x60"}, fires={}, summary="2 nodes do not wake"),
    Case("JoulieApiUnavailable", {UNAVAILABLE: "1x2 0x60"}),
    Case("JoulieApiUnavailable", {UNAVAILABLE.replace("energy.joulie", "metrics.k8s"): "1x60"}),
    Case(
        "JoulieApiUnavailable",
        {UNAVAILABLE: "1x60"},
        fires={"name": "v1alpha1.energy.joulie.io"},
        summary="The API server cannot reach the aggregated API of joulie web",
    ),
    Case("JoulieWebhookCertificate", {EXPIRY: f"{30 * 86400}x180"}, LATE),
    Case(
        "JoulieWebhookCertificate",
        {EXPIRY: f"{86400 + 7200}x180"},
        LATE,
        fires={},
        summary="The webhook's certificate ends in 1d 0h 0m 0s",
    ),
]


def test_u11_every_alert_is_tried_both_ways() -> None:
    for fires in (True, False):
        assert {case.alert for case in CASES if (case.fires is not None) is fires} == set(ALERTS)


def test_u11_alerts_fire_when_they_should_and_only_then(promtool: Path, tmp_path: Path) -> None:
    file = tmp_path / "alerts.yaml"
    tests = [_test(case) for case in CASES]
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    for arguments in (["check", "rules", RULES], ["test", "rules", file]):
        ended = subprocess.run([promtool, *arguments], capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr


def test_promtool_tells_of_an_alert_that_does_not_fire(promtool: Path, tmp_path: Path) -> None:
    file = tmp_path / "alerts.yaml"
    never = Case("JoulieAgentBlocked", {BLOCKED.replace("blocked", "applied"): "1x60"}, fires=CPU)
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "tests": [_test(never)]}))
    ended = subprocess.run([promtool, "test", "rules", file], capture_output=True, text=True, check=False)
    assert ended.returncode != 0


def _test(case: Case) -> dict[str, object]:
    rule = ALERTS[case.alert]
    expected = []
    if case.fires is not None:
        annotations = {key: _filled(text, case) for key, text in rule["annotations"].items()}
        annotations["summary"] = case.summary
        expected.append({"exp_labels": case.fires | rule["labels"], "exp_annotations": annotations})
    series = [{"series": name, "values": values} for name, values in case.series.items()]
    test = {"eval_time": case.at, "alertname": case.alert, "exp_alerts": expected}
    return {"interval": "1m", "input_series": series, "alert_rule_test": [test]}


def _filled(text: str, case: Case) -> str:
    """An annotation with the labels of its alert, and with the value, which only two descriptions have."""
    for label, value in (case.fires or {}).items():
        text = text.replace(f"{{{{ $labels.{label} }}}}", value)
    return (
        text.replace("{{ $value }}", "100")
        .replace("{{ $value | humanizePercentage }}", "120%")
        .replace("{{ $value | humanize }}", "100")
    )
