"""Settings of a variant's operator: as the operator itself would take them from its environment."""

from __future__ import annotations

import click

from joulie.apps.operator import plugins
from joulie.apps.operator.settings import OperatorSettings
from joulie.program.settings import all_settings, settings_from
from joulie_lab.simulation.experiment.scenario import ControlTimes, Experiment, Variant
from joulie_lab.simulation.model_files import did_you_mean
from joulie_lab.simulation.native.control import Control
from joulie_lab.simulation.schedulers import NATIVE_SCHEDULERS

_INTERVAL = "RECONCILE_INTERVAL"


class VariantError(ValueError):
    """A variant that cannot be run; the message names it, and the setting at fault."""


def operator_settings(variant: Variant, times: ControlTimes) -> OperatorSettings:
    """What the operator of a variant makes of its settings.

    Raises:
        VariantError: a setting that the operator does not have, or a value that it would refuse.
    """
    known = list(all_settings(OperatorSettings))
    for name in variant.operator:
        if name not in known:
            raise VariantError(
                f"variant {variant.name}: operator.{name}: unknown setting{did_you_mean(name, known)};"
                " they are those of joulie operator --help"
            )
    if _INTERVAL in variant.operator:
        raise VariantError(
            f"variant {variant.name}: operator.{_INTERVAL}: said by control.operator_s, the same for all variants"
        )
    environment = {_INTERVAL: f"{times.operator_s:g}s", **variant.operator}
    try:
        return settings_from(OperatorSettings, environment)
    except click.UsageError as error:
        raise VariantError(f"variant {variant.name}: {_refused(variant)}: {error.format_message()}") from error
    except ValueError as error:
        raise VariantError(f"variant {variant.name}: {error}") from error


def _refused(variant: Variant) -> str:
    """The setting whose value is of the wrong kind, by its name; click's own message has only the value."""
    for name, value in variant.operator.items():
        try:
            settings_from(OperatorSettings, {name: value})
        except click.UsageError:
            return f"operator.{name}"
        except ValueError:
            continue  # together with the others it may be right
    return "operator"


def check_variants(experiment: Experiment) -> None:
    """Refuse what the operator would refuse and schedulers that nobody knows, before anything runs.

    Raises:
        VariantError: every variant that cannot be run, a line each.
    """
    problems = []
    for variant in experiment.variants:
        if variant.scheduler not in NATIVE_SCHEDULERS:
            problems.append(
                f"variant {variant.name}: scheduler: must be one of {', '.join(NATIVE_SCHEDULERS)},"
                f" got {variant.scheduler!r}{did_you_mean(variant.scheduler, NATIVE_SCHEDULERS)}"
            )
        if variant.joulie:
            try:
                build_control(variant, experiment.control)
            except VariantError as error:
                problems.append(str(error))
    if problems:
        raise VariantError("\n".join(problems))


def build_control(variant: Variant, times: ControlTimes) -> Control:
    """What the operator of a variant decides with, natively.

    Raises:
        VariantError: a setting that the operator does not have, or a value that it would refuse.
    """
    settings = operator_settings(variant, times)
    try:
        return Control(
            policy=plugins.policy(settings.policy_type, settings.policy),
            settings=settings.control,
            cooling=plugins.cooling_model(settings.cooling_model),
        )
    except ValueError as error:
        raise VariantError(f"variant {variant.name}: {error}") from error
