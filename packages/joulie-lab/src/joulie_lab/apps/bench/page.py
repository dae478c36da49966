"""``joulie bench page``: generates documentation pages from committed results."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import click
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from joulie.program.errors import UserError
from joulie_lab.apps.bench.registry import PAGES, module_of
from joulie_lab.apps.bench.report import Page
from joulie_lab.benchmarks.results import Figures, read_result
from joulie_lab.simulation.report.png import png

_DOCS, _RESULTS, _TEMPLATES = Path("docs"), Path("benchmarks/results"), Path("benchmarks/pages")
_END = "\n<!-- end -->\n"


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(PAGES), metavar="[NAME]...")
@click.option("--check", is_flag=True, help="Write nothing; list the pages that differ, with exit status 1.")
def page(names: tuple[str, ...], *, check: bool) -> None:
    """Write the documentation pages of benchmarks, in a checkout.

    A page takes its figures from benchmarks/results/NAME.json and its text from benchmarks/pages/NAME.md; its images
    are redrawn. Without a NAME: all pages.
    """
    if not _RESULTS.is_dir():
        raise UserError(f"{_RESULTS} not found: run this command in a checkout")
    different = [name for name in names or PAGES if not _update(name, check=check)]
    for name in different if check else ():
        click.echo(f"{_page(name).path} differs: run `joulie bench page {name}`", err=True)
    if check and different:
        click.get_current_context().exit(1)


def _update(name: str, *, check: bool) -> bool:
    """Write a page and its images, or only check its text; returns whether the text was up to date."""
    one = _page(name)
    place = _DOCS / one.path
    result = read_result(_RESULTS / f"{name}.json", one.result)
    before = place.read_text(encoding="utf-8") if place.exists() else ""
    text = render(name, one, result, before)
    if not check:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
        for path, draw in one.images.items():
            if (figure := draw(result)) is not None:
                (place.parent / path).write_bytes(png(figure))
    return text == before


def render(name: str, one: Page[Figures], result: Figures, before: str = "", templates: Path = _TEMPLATES) -> str:
    """The text of a page.

    Args:
        name: name of the benchmark.
        one: definition of its page.
        result: the committed result.
        before: current text of the page, empty if there is none yet; without a template, only its generated block is
            replaced.
        templates: folder of the templates.

    Raises:
        UserError: the page has no template, and no block to replace either.
    """
    values = one.values(result)
    if "block" in values:
        begin = f"<!-- from benchmarks/results/{name}.json -->\n"
        head, found, rest = before.partition(begin)
        _, ended, tail = rest.partition(_END)
        if not (found and ended):
            place = _DOCS / one.path
            raise UserError(f"{place} must have the lines {begin.strip()!r} and {_END.strip()!r}, with the text around")
        return f"{head}{begin}\n{values['block']}\n{_END}{tail}"
    environment = Environment(
        loader=FileSystemLoader(templates),
        autoescape=select_autoescape(()),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
    )
    environment.filters["num"] = format
    environment.filters["pct"] = _pct
    return environment.get_template(f"{name}.md").render(r=result, **values)


def _pct(share: float) -> str:
    return f"{100.0 * share:.0f} %"


def _page(name: str) -> Page[Figures]:
    found: Page[Figures] = import_module(module_of(name)).PAGE
    return found
