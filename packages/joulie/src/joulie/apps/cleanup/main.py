"""The command `joulie cleanup`: the chart's pre-delete hook, also run by hand."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass

import click

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import KubernetesError
from joulie.apps.cleanup.steps import Cleanup, Outcome
from joulie.program import logs
from joulie.program.settings import ProgramSettings, settings_options
from joulie.settings import boolean, duration, listed, text

_MAX_LISTED = 20


@dataclass(frozen=True, kw_only=True)
class CleanupSettings(ProgramSettings):
    """Settings of `joulie cleanup`."""

    timeout_s: float = duration(
        "CLEANUP_TIMEOUT",
        "90s",
        "Maximum time to wait for the agents' reports, and for released pods to be bound.",
        minimum=0.0,
    )
    namespace: str = text("POD_NAMESPACE", "joulie-system", "Namespace of the Leases.")
    lease_name: str = text("LEASE_NAME", "joulie-operator", "The operator's Lease.")
    profile_label: str = text(
        "POWER_PROFILE_LABEL", names.POWER_PROFILE_LABEL, "Node label of the operator's power profile."
    )
    only_grid: bool = boolean(
        "CLEANUP_ONLY_GRID", False, "Release only what waits for the grid; the rest of Joulie stays installed."
    )
    only_ceilings: bool = boolean(
        "CLEANUP_ONLY_CEILINGS", False, "Restore only the maxima of autoscalers; the rest of Joulie stays installed."
    )
    schedulers: tuple[str, ...] = text(
        "SCHEDULER_NAMES",
        "",
        "Schedulers that are removed afterwards, separated by commas: their pods are bound before; the Lease of the "
        "first is Joulie's too.",
        to=listed,
    )
    service_account: str = text("SERVICE_ACCOUNT", "", "ServiceAccount of Joulie: the Leases are deleted with it.")
    multikueue_dispatcher: bool = boolean("MULTIKUEUE_DISPATCHER", False, "As the grid controller's.")
    strict: bool = boolean("CLEANUP_STRICT", False, "Exit with status 1 if an agent did not report in time.")


@click.command("cleanup")
@settings_options(CleanupSettings)
def cleanup(settings: CleanupSettings) -> None:
    """Lift all caps, wait until the agents have restored the nodes, remove Joulie's labels and scheduling gates.

    New pods are no longer gated, Jobs that wait for the grid are resumed, and lowered maxima of autoscalers restored.
    Operator and grid controller are stopped from acting by taking their Leases, which takes at least eleven seconds.
    Nodes whose agent does not report in time are listed: their limits return when an agent starts there again, or at
    their next boot. Another run completes what is left. Exit status 1: something was left behind.
    """
    logs.configure(settings.log_level, settings.log_format)
    try:
        outcome = asyncio.run(_clean(settings))
    except KubernetesError as error:
        raise click.ClickException(str(error)) from error
    _report(outcome)
    if outcome.problems or (settings.strict and outcome.not_restored):
        sys.exit(1)


async def _clean(settings: CleanupSettings) -> Outcome:
    async with KubeClient.connect(
        kubeconfig=settings.kubeconfig, context=settings.context, user_agent="joulie-cleanup"
    ) as client:
        steps = Cleanup(
            client,
            lease_namespace=settings.namespace,
            lease_name=settings.lease_name,
            profile_label=settings.profile_label,
            schedulers=settings.schedulers,
            service_account=settings.service_account,
            multikueue_dispatcher=settings.multikueue_dispatcher,
        )
        if settings.only_ceilings:
            return await steps.restore_maxima()
        run = steps.release_grid if settings.only_grid else steps.run
        return await run(timeout_s=settings.timeout_s)


def _report(outcome: Outcome) -> None:
    click.echo(
        f"{_count(outcome.restored, 'node')} restored, {_count(outcome.labels_removed, 'node')} unlabelled,"
        f" {_count(outcome.gates_removed, 'pod')} released"
    )
    if outcome.nodes_opened:
        click.echo(f"{_count(outcome.nodes_opened, 'node')} that slept opened to pods")
    if outcome.nodes_off:
        click.echo(f"not ready, perhaps switched off: {', '.join(sorted(outcome.nodes_off))}")
    if outcome.jobs_resumed:
        click.echo(f"{_count(outcome.jobs_resumed, 'Job')} resumed")
    if outcome.maxima_restored:
        click.echo(f"maxima of {_count(outcome.maxima_restored, 'autoscaler')} restored")
    if outcome.workloads_released:
        click.echo(f"{_count(outcome.workloads_released, 'workload')} of Kueue released")
    if outcome.unscheduled:
        names_of = ", ".join(outcome.unscheduled[:_MAX_LISTED])
        more = f" and {len(outcome.unscheduled) - _MAX_LISTED} more" if len(outcome.unscheduled) > _MAX_LISTED else ""
        click.echo(
            f"{_count(len(outcome.unscheduled), 'pod')} not scheduled yet, which nobody will do once Joulie's scheduler"
            f" is gone: {names_of}{more}",
            err=True,
        )
    not_restored = list(outcome.not_restored.items())
    if not_restored:
        click.echo(
            f"{_count(len(not_restored), 'node')} not restored; limits return when an agent starts there again,"
            " or at the next boot:",
            err=True,
        )
    for node, report in not_restored[:_MAX_LISTED]:
        click.echo(f"  {node}: {report}", err=True)
    if len(not_restored) > _MAX_LISTED:
        click.echo(f"  and {len(not_restored) - _MAX_LISTED} more", err=True)
    for problem in outcome.problems:
        click.echo(f"Error: {problem}", err=True)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
