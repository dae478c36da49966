"""Operator settings of a variant, parsed and checked as the operator does with its environment."""

from __future__ import annotations

import click

from joulie.apps.operator import plugins
from joulie.apps.operator.settings import OperatorSettings
from joulie.domain.capping.choice import Goal
from joulie.program.settings import all_settings, settings_from
from joulie_lab.simulation.experiment.scenario import ControlTimes, Experiment, Variant
from joulie_lab.simulation.model_files import did_you_mean
from joulie_lab.simulation.native.control import Control
from joulie_lab.simulation.native.limits import GpuLimits
from joulie_lab.simulation.schedulers import NATIVE_SCHEDULERS

_INTERVAL = "RECONCILE_INTERVAL"


class VariantError(ValueError):
    """A variant cannot be run; the message names it and the invalid setting."""


def operator_settings(variant: Variant, times: ControlTimes) -> OperatorSettings:
    """Parse the operator settings of a variant.

    Raises:
        VariantError: a setting is unknown, or its value is invalid.
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
            f"variant {variant.name}: operator.{_INTERVAL}: set by control.operator_s, the same for all variants"
        )
    environment = {_INTERVAL: f"{times.operator_s:g}s", **variant.operator}
    try:
        return settings_from(OperatorSettings, environment)
    except click.UsageError as error:
        raise VariantError(f"variant {variant.name}: {_refused(variant)}: {error.format_message()}") from error
    except ValueError as error:
        raise VariantError(f"variant {variant.name}: {error}") from error


def _refused(variant: Variant) -> str:
    """Name of the setting with an invalid value; click's own message has only the value."""
    for name, value in variant.operator.items():
        try:
            settings_from(OperatorSettings, {name: value})
        except click.UsageError:
            return f"operator.{name}"
        except ValueError:
            continue  # valid in combination with the other settings
    return "operator"


def check_variants(experiment: Experiment) -> None:
    """Check operator settings and scheduler names of all variants before anything runs.

    Raises:
        VariantError: some variants cannot be run; one line for each.
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
    """Build policy and settings of a variant's operator for native runs.

    Raises:
        VariantError: a setting is unknown, or its value is invalid.
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


def build_limits(variant: Variant, times: ControlTimes) -> GpuLimits | None:
    """Build the search for limits of GPUs of a variant's operator for native runs; None where it is off.

    Raises:
        VariantError: a setting is unknown, or its value is invalid.
    """
    settings = operator_settings(variant, times)
    if not settings.limits_jobs:
        return None
    performance = Goal(settings.gpu_limits_performance_slowdown) if settings.gpu_limits_performance else None
    return GpuLimits(Goal(settings.gpu_limits_standard_slowdown), performance, settings.gpu_limits_pace)
