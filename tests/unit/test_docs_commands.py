"""Every command line that the docs show is one that the programs take."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from joulie.apps.cli.main import cli
from joulie.apps.kubectl.main import kubectl_joulie

ROOT = Path(__file__).parents[2]
PAGES = (
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name != "reference"),
)
_INLINE = re.compile(r"`((?:kubectl )?joulie [^`]+)`")
_COMMAND = re.compile(r"^\s*(?:\$ )?(?:\S+/)?((?:kubectl )?joulie .+)$")
_ENDS = {"|", ">", ">>", "&&", "&", ";", "<"}
PROGRAMS: dict[str, click.Command] = {"joulie": cli, "kubectl joulie": kubectl_joulie}


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


def words_of(line: str) -> list[str]:
    """The words of a command, up to where the shell goes on."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:
        if word in _ENDS:
            break
        words.append(word)
    return words


def check(line: str) -> None:
    """Raise `click.UsageError` for a line that no program takes."""
    words = words_of(line)
    name, rest = ("kubectl joulie", words[2:]) if words[0] == "kubectl" else ("joulie", words[1:])
    command, context = PROGRAMS[name], click.Context(PROGRAMS[name])
    while isinstance(command, click.Group):
        taken, rest, _ = command.make_parser(context).parse_args(rest)
        if not rest or taken:
            return
        found = command.get_command(context, rest[0])
        if found is None:
            raise click.UsageError(f"there is no command {rest[0]}")
        command, rest = found, rest[1:]
        context = click.Context(command)
    try:
        values, beyond, _ = command.make_parser(context).parse_args(rest)
    except click.BadOptionUsage:
        return  # the text speaks of an option, without a value
    if beyond:
        raise click.UsageError(f"takes no {beyond}")
    for parameter in command.params:
        value = values.get(parameter.name or "")
        if isinstance(parameter.type, click.Choice) and isinstance(value, str):
            parameter.type.convert(value, parameter, context)


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
