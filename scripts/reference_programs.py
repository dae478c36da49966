"""Generates the reference pages of the programs' settings and metrics from the code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric

from joulie.adapters.grid.metrics import GridMetrics
from joulie.apps.accounting.metrics import AccountingMetrics
from joulie.apps.accounting.settings import AccountingSettings
from joulie.apps.agent.metrics import registry as agent_registry
from joulie.apps.agent.settings import AgentSettings
from joulie.apps.cleanup.main import CleanupSettings
from joulie.apps.extender.metrics import ExtenderMetrics, StateCollector
from joulie.apps.extender.settings import ExtenderSettings
from joulie.apps.grid.guard import GuardSettings
from joulie.apps.grid.metrics import ControllerMetrics
from joulie.apps.grid.settings import ControllerSettings
from joulie.apps.grid.webhook import WebhookMetrics, WebhookSettings
from joulie.apps.kubectl.web.metrics import WebMetrics
from joulie.apps.kubectl.web.settings import WebSettings
from joulie.apps.operator.metrics import OperatorMetrics
from joulie.apps.operator.settings import OperatorSettings
from joulie.program.settings import ProgramSettings, all_settings
from joulie.settings import Kind, Setting
from joulie_lab.apps.simulator.main import build_world
from joulie_lab.apps.simulator.metrics import SimulatorMetrics
from joulie_lab.apps.simulator.settings import SimulatorSettings

_GENERATED = "<!-- Written by scripts/generate_reference.py: change the code, then run it again. -->"
_SETTINGS: Mapping[str, type[ProgramSettings]] = {
    "joulie operator": OperatorSettings,
    "joulie agent": AgentSettings,
    "joulie extender": ExtenderSettings,
    "joulie simulator": SimulatorSettings,
    "joulie grid controller": ControllerSettings,
    "joulie grid guard": GuardSettings,
    "joulie grid webhook": WebhookSettings,
    "joulie accounting": AccountingSettings,
    "joulie web": WebSettings,
    "joulie cleanup": CleanupSettings,
}
_SUFFIX = {"counter": "_total"}


def settings_page() -> str:
    """Every setting of every program with type, default, range and meaning."""
    blocks = [
        "# Settings",
        _GENERATED,
        "Each setting can be an option of the command line (`--reconcile-interval 20s`), an environment variable"
        " (`RECONCILE_INTERVAL=20s`) or a key of a YAML file (`--config`, or `JOULIE_CONFIG`), in this order of"
        " precedence. The names are the environment variables; an option is the name in lower case with dashes. An"
        " invalid value stops the program at its start; the error names the variable and the allowed values. An empty"
        " variable counts as unset.",
        "## All programs",
        _settings_table(all_settings(ProgramSettings).values()),
    ]
    shared = all_settings(ProgramSettings)
    for program, settings in _SETTINGS.items():
        own = [spec for name, spec in all_settings(settings).items() if name not in shared]
        blocks += [f"## {program}", _settings_table(own)]
    return "\n\n".join(blocks) + "\n"


def _settings_table(specs: Any) -> str:
    rows = ["| name | type | default | allowed | meaning |", "|---|---|---|---|---|"]
    rows += [_settings_row(spec) for spec in specs]
    return "\n".join(rows)


def _settings_row(spec: Setting) -> str:
    default = "" if spec.default is None else f"`{spec.default}`" if spec.default != "" else "empty"
    kind = spec.kind if not spec.unit else f"{spec.kind}, {spec.unit}"
    allowed = spec.allowed.replace("|", r"\|") if spec.kind is not Kind.BOOLEAN else ""
    return f"| `{spec.name}` | {kind} | {default} | {allowed} | {spec.help.replace('|', chr(92) + '|')} |"


def metrics_page() -> str:
    """Every metric of every program with type, labels and meaning."""
    blocks = [
        "# Metrics",
        _GENERATED,
        "Every program serves `/metrics` in the Prometheus text format, `/healthz` and `/readyz`. The number of series"
        " is bounded: series of a node are removed with the node, and no free text of users becomes a label's value.",
    ]
    for program, registry in _registries().items():
        rows = sorted(set(_metric_rows(registry)))
        blocks += [
            f"## {program}",
            "\n".join(["| name | type | labels | meaning |", "|---|---|---|---|", *rows]),
        ]
    return "\n\n".join(blocks) + "\n"


def _registries() -> dict[str, CollectorRegistry]:
    extender = CollectorRegistry()
    ExtenderMetrics(extender)
    StateCollector(lambda: None, lambda: (), extender)
    accounting = AccountingMetrics().registry
    GridMetrics(accounting)
    web = CollectorRegistry()
    WebMetrics(web)
    grid = ControllerMetrics().registry
    GridMetrics(grid)
    return {
        "joulie operator": OperatorMetrics().registry,
        "joulie agent": agent_registry(lambda: ()),
        "joulie extender": extender,
        "joulie grid controller": grid,
        "joulie grid webhook": WebhookMetrics().registry,
        "joulie accounting": accounting,
        "joulie web": web,
        "joulie simulator": SimulatorMetrics(build_world(SimulatorSettings())).registry,
    }


def _metric_rows(registry: CollectorRegistry) -> Iterator[str]:
    # Collecting gives names and help texts. Labels of a metric without series are known only to its collector.
    for collector in list(registry._collector_to_names):
        if isinstance(collector, MetricWrapperBase):
            (family,) = collector.describe()
            yield _metric_row(family, collector._labelnames)
            continue
        for family in collector.collect():
            if not family.name.startswith(("python_", "process_")):
                yield _metric_row(family, getattr(family, "_labelnames", ()))


def _metric_row(family: Metric, labels: tuple[str, ...]) -> str:
    name = family.name + _SUFFIX.get(family.type, "")
    return f"| `{name}` | {family.type} | {', '.join(labels)} | {family.documentation} |"
