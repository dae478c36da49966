"""Whether a command line is one that the programs take."""

from __future__ import annotations

import shlex

import click

from joulie.apps.cli.main import cli
from joulie.apps.kubectl.main import kubectl_joulie

_ENDS = {"|", ">", ">>", "&&", "&", ";", "<"}
PROGRAMS: dict[str, click.Command] = {"joulie": cli, "kubectl joulie": kubectl_joulie}


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
