"""What the commands of `kubectl joulie` have in common: options, and the client that they work with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import click

from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import KubernetesError
from joulie.apps.kubectl.accounting import AccountingAt
from joulie.apps.kubectl.leader import Whereabouts
from joulie.domain.durations import duration_s
from joulie.program.documents import FORMS

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]


def connected(work: Callable[[KubeClient], Awaitable[None]], *, kubeconfig: Path | None, context: str | None) -> None:
    """Run `work` with a client; what goes wrong with the cluster becomes one line for the user."""

    async def talk() -> None:
        async with KubeClient.connect(kubeconfig=kubeconfig, context=context, user_agent="kubectl-joulie") as client:
            await work(client)

    try:
        asyncio.run(talk())
    except KubernetesError as error:
        raise click.ClickException(str(error)) from error


def _together(*options: Decorator) -> Decorator:
    """Several options as one, in this order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


cluster_options: Decorator = _together(
    click.option(
        "--kubeconfig",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Kubeconfig file; without it, what kubectl uses.",
    ),
    click.option("--context", help="Context of the kubeconfig file."),
)
"""Which cluster, named as kubectl names them."""

output_option: Decorator = click.option(
    "-o", "--output", type=click.Choice(FORMS), default="table", show_default=True, help="Form of the output."
)

limit_option: Decorator = click.option(
    "--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Rows at most."
)


def table_options(columns: Iterable[str], by_default: str) -> Decorator:
    """The form of a table, and the order of its rows."""
    order = click.Choice(tuple(columns))
    return _together(
        output_option,
        click.option("--sort-by", type=order, default=by_default, show_default=True, help="Order of rows."),
        click.option("--reverse", is_flag=True, help="The other way round."),
    )


def namespace_options(things: str = "pods") -> Decorator:
    """Whose namespace."""
    return _together(
        click.option("-n", "--namespace", default="", help=f"Namespace of the {things}; without it, the context's."),
        click.option("-A", "--all-namespaces", is_flag=True, help=f"{things.capitalize()} of all namespaces."),
    )


class _Span(click.ParamType[float | None]):
    """A time span in s, or None for ``all``."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | None:
        """The seconds of a text."""
        if value is None or isinstance(value, float) or value == "all":
            return None if value == "all" else value
        try:
            seconds = duration_s(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return seconds if seconds > 0.0 else self.fail("must be above 0", param, ctx)


since_option: Decorator = click.option(
    "--since",
    "since_s",
    type=_Span(),
    default="24h",
    show_default=True,
    help="How far back to look, such as 90m, 24h or 30d; all for as long as there are accounts.",
)


def _program_options(program: str, title: str, port: int, scheme: str) -> Decorator:
    """Where a program is that commands ask."""
    named = "HTTPS" if scheme == "https" else "metrics"
    return _together(
        click.option(
            f"--{program}-namespace", default="joulie-system", show_default=True, help=f"Namespace of the {title}."
        ),
        click.option(
            f"--{program}-port",
            type=click.IntRange(1, 65535),
            default=port,
            show_default=True,
            help=f"Its {named} port, reached through the API server.",
        ),
        click.option(f"--{program}-url", help=f"Its address instead, such as {scheme}://127.0.0.1:{port}."),
    )


def _insecure_option(url: str) -> Decorator:
    return click.option("--insecure-skip-tls-verify", is_flag=True, help=f"Do not check the certificate at {url}.")


operator_options: Decorator = _program_options("operator", "operator", 8081, "http")
grid_options: Decorator = _together(
    _program_options("grid", "grid controller", 10259, "https"), _insecure_option("--grid-url")
)
accounting_options: Decorator = _together(
    _program_options("accounting", "accounting program", 10259, "https"), _insecure_option("--accounting-url")
)


def operator_at(options: dict[str, Any]) -> Whereabouts:
    """Where the operator is, by the options of that, which are taken out."""
    return Whereabouts(*_place("operator", options))


def grid_at(options: dict[str, Any]) -> Whereabouts:
    """Where the grid controller is, by the options of that, which are taken out."""
    verify = not options.pop("insecure_skip_tls_verify")
    return Whereabouts(*_place("grid", options), program="grid", https=True, verify=verify)


def accounting_at(options: dict[str, Any]) -> AccountingAt:
    """Where the accounting program is, by the options of that, which are taken out."""
    return AccountingAt(*_place("accounting", options), verify=not options.pop("insecure_skip_tls_verify"))


def _place(program: str, options: dict[str, Any]) -> tuple[str, int, str | None]:
    return options.pop(f"{program}_namespace"), options.pop(f"{program}_port"), options.pop(f"{program}_url")
