"""``joulie bench fetch``: downloads the public datasets of the benchmarks to the user's cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from joulie.program.errors import UserError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from joulie_lab.adapters.published.datasets import Dataset

_MIB = 1024.0**2


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--list", "only_list", is_flag=True, help="List the datasets without fetching any.")
@click.option(
    "--to", type=click.Path(path_type=Path), help="Parent folder of the dataset folders.  [default: the user's cache]"
)
@click.option("-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
def fetch(names: tuple[str, ...], *, only_list: bool, to: Path | None, output: str) -> None:
    """Fetch published datasets from their publishers and verify their checksums.

    Without a NAME: all datasets of the benchmarks, some megabytes. Existing files are kept, and interrupted downloads
    are resumed. Each dataset has its own licence, which is shown; Joulie grants none.
    """
    from joulie_lab.adapters.published.datasets import DATASETS, cache_root

    unknown = [name for name in names if name not in DATASETS]
    if unknown:
        raise UserError(f"unknown dataset {unknown[0]!r}; use one of {', '.join(DATASETS)}")
    root = to or cache_root()
    wanted = [DATASETS[name] for name in dict.fromkeys(names)]
    if only_list:
        _show(_rows(wanted or list(DATASETS.values()), root), output)
        return
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{root}: cannot be written: {error.strerror}") from error
    wanted = wanted or [one for one in DATASETS.values() if not one.large]
    problems = _fetch(wanted, root)
    _show(_rows(wanted, root), output)
    for problem in problems:
        click.echo(f"joulie: error: {problem}", err=True)
    if problems:
        click.get_current_context().exit(1)


def _fetch(datasets: Sequence[Dataset], root: Path) -> list[str]:
    """Fetch missing files; returns the problems."""
    import httpx2
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from joulie_lab.adapters.published.download import fetch, is_complete
    from joulie_lab.adapters.published.errors import FetchError

    console = Console(stderr=True)
    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    problems: list[str] = []
    with httpx2.Client(follow_redirects=True) as client, bars, _retries_said():
        for dataset in datasets:
            click.echo(f"{dataset.name}: {dataset.home}; licence: {dataset.licence}", err=True)
            for file in dataset.files:
                task = bars.add_task(file.name, total=file.size_bytes)
                try:
                    if not is_complete(file, root / dataset.name):
                        fetch(file, root / dataset.name, client, partial(_advance, bars, task))
                except FetchError as error:
                    problems += str(error).splitlines()
                bars.remove_task(task)
    return problems


@contextmanager
def _retries_said() -> Iterator[None]:
    """Report why a download is retried."""
    from stamina.instrumentation import RetryDetails, set_on_retry_hooks

    def say(details: RetryDetails) -> None:
        click.echo(f"{details.caused_by}; retry in {details.wait_for:.0f} s", err=True)

    set_on_retry_hooks([say])
    try:
        yield
    finally:
        set_on_retry_hooks(None)


def _advance(bars: Progress, task: TaskID, have: int) -> None:
    bars.update(task, completed=have)


def _rows(datasets: Sequence[Dataset], root: Path) -> list[dict[str, Any]]:
    """The datasets, and which of their files are in the cache."""
    from joulie_lab.adapters.published.download import is_complete
    from joulie_lab.adapters.published.errors import FetchError

    try:
        return [
            {
                "name": dataset.name,
                "summary": dataset.summary,
                "home": dataset.home,
                "licence": dataset.licence,
                "folder": str(root / dataset.name),
                "files": [
                    {"name": file.name, "bytes": file.size_bytes, "complete": is_complete(file, root / dataset.name)}
                    for file in dataset.files
                ],
            }
            for dataset in datasets
        ]
    except FetchError as error:
        raise UserError(str(error)) from error


def _show(rows: Sequence[Mapping[str, Any]], output: str) -> None:
    from joulie.program.documents import print_document

    if output != "table":
        print_document(rows, output)
        return
    for row in rows:
        click.echo(f"{row['name']}: {row['summary']}\n  {row['home']}; licence: {row['licence']}\n  {row['folder']}")
        for file in row["files"]:
            size = f"{file['bytes'] / _MIB:.2f} MiB" if file["bytes"] else "tens of MiB"
            click.echo(f"  {'complete' if file['complete'] else 'missing ':<8}  {file['name']}  {size}")
