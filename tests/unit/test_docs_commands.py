"""Every command line that the docs show is one that the programs take."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from support.command_lines import check

ROOT = Path(__file__).parents[2]
PAGES = (
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name != "reference"),
)
_INLINE = re.compile(r"`((?:kubectl )?joulie [^`]+)`")
_COMMAND = re.compile(r"^\s*(?:\$ )?(?:\S+/)?((?:kubectl )?joulie .+)$")


def command_lines(text: str) -> Iterator[str]:
    """The command lines of a page, in blocks and in running text."""
    fenced = False
    for line in text.replace("\\\n", " ").splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield from _INLINE.findall(line)
        elif found := _COMMAND.match(line):
            yield found[1]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_says_to_type_can_be_typed(page):
    wrong = []
    for line in command_lines(page.read_text(encoding="utf-8")):
        try:
            check(line)
        except (click.UsageError, ValueError) as error:
            wrong.append(f"{line}: {error}")
    assert not wrong


def test_wrong_lines_are_found():
    page = "```bash\njoulie bench openb --dta x\n```\n and `joulie benhc`, `kubectl joulie top nodes -o xml`\n"
    assert len(list(command_lines(page))) == 3
    for line in command_lines(page):
        with pytest.raises(click.UsageError):
            check(line)
