"""Options shared by the commands of `kubectl joulie`, and the client that the commands run with."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import click
from stamina.instrumentation import set_on_retry_hooks

from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import KubernetesError
from joulie.adapters.program_api.energy import GROUPS, LABEL_PREFIX
from joulie.apps.kubectl.accounting import AccountingEndpoint
from joulie.apps.kubectl.leader import LeaderEndpoint
from joulie.domain.durations import duration_s
from joulie.program.documents import FORMS

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]


class EnergyGroup(click.Choice[str]):
    """A grouping of energy: one of `GROUPS`, or the key of a label."""

    def __init__(self) -> None:
        super().__init__([*GROUPS, f"{LABEL_PREFIX}KEY"])

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Accept every key: which are kept, the accounting program says."""
        text = str(value)
        has_key = text.startswith(LABEL_PREFIX) and text != LABEL_PREFIX
        return text if has_key else super().convert(value, param, ctx)


def run_with_client(
    work: Callable[[KubeClient], Awaitable[None]], *, kubeconfig: Path | None, context: str | None
) -> None:
    """Run `work` with a Kubernetes client; API errors become one-line command errors, which retries do not precede."""
    set_on_retry_hooks([])

    async def connect() -> None:
        async with KubeClient.connect(kubeconfig=kubeconfig, context=context, user_agent="kubectl-joulie") as client:
            await work(client)

    try:
        asyncio.run(connect())
    except KubernetesError as error:
        raise click.ClickException(str(error)) from error


def _combine(*options: Decorator) -> Decorator:
    """Combine option decorators into one; options are listed in this order."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


cluster_options: Decorator = _combine(
    click.option(
        "--kubeconfig",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Kubeconfig file. [default: the one kubectl uses]",
    ),
    click.option("--context", help="Context of the kubeconfig file."),
)
"""Options that select the cluster, named as in kubectl."""

output_option: Decorator = click.option(
    "-o", "--output", type=click.Choice(FORMS), default="table", show_default=True, help="Output format."
)

limit_option: Decorator = click.option(
    "--limit", type=click.IntRange(min=1), default=50, show_default=True, help="Maximum number of rows."
)


def table_options(columns: Iterable[str], by_default: str) -> Decorator:
    """Options for the output format and the order of rows."""
    order = click.Choice(tuple(columns))
    return _combine(
        output_option,
        click.option("--sort-by", type=order, default=by_default, show_default=True, help="Column to sort by."),
        click.option("--reverse", is_flag=True, help="Reverse the order of rows."),
    )


def namespace_options(things: str = "pods") -> Decorator:
    """Options that select one namespace or all."""
    return _combine(
        click.option(
            "-n", "--namespace", default="", help=f"Namespace of the {things}. [default: that of the context]"
        ),
        click.option("-A", "--all-namespaces", is_flag=True, help=f"Show {things} of all namespaces."),
    )


class _Duration(click.ParamType[float | None]):
    """Duration option in s; None for ``all``."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | None:
        """Parse a duration such as ``24h`` into seconds."""
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
    type=_Duration(),
    default="24h",
    show_default=True,
    help="Length of the period up to now, such as 90m, 24h or 30d; all for all stored data.",
)


def _program_options(program: str, title: str, port: int, scheme: str) -> Decorator:
    """Options for the address of a program."""
    port_name = "HTTPS" if scheme == "https" else "Metrics"
    return _combine(
        click.option(
            f"--{program}-namespace", default="joulie-system", show_default=True, help=f"Namespace of the {title}."
        ),
        click.option(
            f"--{program}-port",
            type=click.IntRange(1, 65535),
            default=port,
            show_default=True,
            help=f"{port_name} port of the {title}, reached through the API server.",
        ),
        click.option(
            f"--{program}-url",
            help=f"URL of the {title}, to connect directly, such as {scheme}://127.0.0.1:{port}.",
        ),
    )


def _insecure_option(url: str) -> Decorator:
    return click.option("--insecure-skip-tls-verify", is_flag=True, help=f"Do not verify the certificate at {url}.")


operator_options: Decorator = _program_options("operator", "operator", 8081, "http")
grid_options: Decorator = _combine(
    _program_options("grid", "grid controller", 10259, "https"), _insecure_option("--grid-url")
)
_accounting_program_options: Decorator = _combine(
    _program_options("accounting", "accounting program", 10259, "https"),
    click.option(
        "--accounting-service",
        default="joulie-accounting",
        show_default=True,
        help="Service of the accounting program.",
    ),
    click.option(
        "--token-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="File with a token of the cluster (kubectl create token), for users without one: it says who asks.",
    ),
)
accounting_options: Decorator = _combine(_accounting_program_options, _insecure_option("--accounting-url"))
account_options: Decorator = _combine(cluster_options, namespace_options(), since_option, accounting_options)
"""Options of the commands that query the accounting program for a period."""
all_programs_options: Decorator = _combine(
    operator_options,
    _program_options("grid", "grid controller", 10259, "https"),
    _accounting_program_options,
    _insecure_option("--grid-url and --accounting-url"),
)


def operator_endpoint(options: dict[str, Any]) -> LeaderEndpoint:
    """Address of the operator; removes its options from `options`."""
    return LeaderEndpoint(*_address_options("operator", options))


def grid_endpoint(options: dict[str, Any]) -> LeaderEndpoint:
    """Address of the grid controller; removes its options from `options`."""
    verify = not options.pop("insecure_skip_tls_verify")
    return LeaderEndpoint(*_address_options("grid", options), program="grid", https=True, verify=verify)


def accounting_endpoint(options: dict[str, Any]) -> AccountingEndpoint:
    """Address of the accounting program; removes its options from `options`."""
    verify = not options.pop("insecure_skip_tls_verify")
    service, token_file = options.pop("accounting_service"), options.pop("token_file")
    return AccountingEndpoint(*_address_options("accounting", options), verify, service, token_file)


def all_endpoints(options: dict[str, Any]) -> tuple[LeaderEndpoint, LeaderEndpoint, AccountingEndpoint]:
    """Addresses of the operator, the grid controller and the accounting program; removes their options."""
    insecure = {"insecure_skip_tls_verify": options["insecure_skip_tls_verify"]}
    operator, grid = operator_endpoint(options), grid_endpoint(options)
    options |= insecure
    return operator, grid, accounting_endpoint(options)


def _address_options(program: str, options: dict[str, Any]) -> tuple[str, int, str | None]:
    return options.pop(f"{program}_namespace"), options.pop(f"{program}_port"), options.pop(f"{program}_url")
