"""Mistakes of users, generated from the command tree: each ends in a line that helps, and changes nothing."""

from __future__ import annotations

import hashlib
import io
import os
import re
import signal
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import click
import numpy as np
import pytest

from joulie.apps.cli.main import cli
from joulie.apps.cli.main import main as joulie_main
from joulie.apps.kubectl.main import kubectl_joulie
from joulie.apps.kubectl.main import main as kubectl_main

MISTAKES_EACH = 4
"""Mistakes tried with each command, drawn at random with the command's name as the seed."""
TIME_LIMIT_S = 10.0
MAX_LINES, MAX_LINE = 12, 1000
pytestmark = pytest.mark.slow
PROGRAMS = {
    "joulie": (cli, joulie_main, "joulie: error: "),
    "kubectl joulie": (kubectl_joulie, kubectl_main, "Error: "),
}
WRITES = re.compile(r"\b(write|output file|folder for|file for|parent folder)\b", re.IGNORECASE)
NUMBERS = {"text": "x", "no number": "nan", "negative": "-1", "unit": "5kW", "empty": "", "huge": "1e300"}
TEXTS = {
    "empty": "",
    "huge": "x" * 100_000,
    "binary": "\udcff\x01",
    "no assignment": "=",
    "path": "../../../etc/shadow",
}
INPUTS = ("missing", "empty", "binary", "huge", "folder", "json", "below-a-file", "unreadable")
OUTPUTS = ("below-a-file/inside", "/proc/none")


@dataclass(frozen=True)
class Leaf:
    """A command that runs something."""

    program: str
    words: tuple[str, ...]
    parameters: tuple[click.Parameter, ...]

    @property
    def name(self) -> str:
        return " ".join((self.program, *self.words))


def leaves(program: str, command: click.Command, words: tuple[str, ...] = ()) -> Iterator[Leaf]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from leaves(program, found, (*words, name))
    if not isinstance(command, click.Group) or command.invoke_without_command:
        yield Leaf(program, words, tuple(command.params))


COMMANDS = [leaf for program, (command, _, _) in PROGRAMS.items() for leaf in leaves(program, command)]


def mistakes_of(parameter: click.Parameter) -> dict[str, str]:
    """Wrong values by what is wrong with them."""
    if isinstance(parameter.type, click.Path):
        if WRITES.search(getattr(parameter, "help", "") or ""):
            return {f"write {place}": place for place in OUTPUTS}
        return {f"read {place}": place for place in INPUTS}
    if isinstance(parameter.type, click.Choice):
        first = str(next(iter(parameter.type.choices)))
        return {"case": first.swapcase() if first.swapcase() != first else "X", "empty": "", "choice": "nonsense"}
    if isinstance(parameter.type, click.types.BoolParamType):
        return {} if getattr(parameter, "is_flag", False) else {"no truth value": "perhaps"}
    return TEXTS if isinstance(parameter.type, click.types.StringParamType) else NUMBERS


def given(parameter: click.Parameter, value: str) -> list[str]:
    return [value] if isinstance(parameter, click.Argument) else [parameter.opts[-1], value]


def plausible(parameter: click.Parameter) -> str:
    """A value of the right type, for required parameters that are not the mistake."""
    if isinstance(parameter.type, click.Choice):
        return str(next(iter(parameter.type.choices)))
    if isinstance(parameter.type, click.Path):
        return "json"
    return "nonsense" if isinstance(parameter.type, click.types.StringParamType) else "1h"


def mistaken(leaf: Leaf) -> Iterator[tuple[str, list[str]]]:
    """Some mistakes with a command: what is wrong, and its arguments."""
    draw = np.random.default_rng(crc32(leaf.name.encode()))
    required = [parameter for parameter in leaf.parameters if parameter.required]
    yield "unknown option", ["--no-such-option"]
    if required:
        yield "missing", []
    choices = [
        (parameter, kind, value)
        for parameter in leaf.parameters
        if not isinstance(parameter.type, click.types.UnprocessedParamType)
        for kind, value in mistakes_of(parameter).items()
    ]
    for index in draw.permutation(len(choices))[:MISTAKES_EACH]:
        parameter, kind, value = choices[index]
        others = [word for other in required if other is not parameter for word in given(other, plausible(other))]
        yield f"{parameter.name}: {kind}", [*given(parameter, value), *others]


CASES = [(leaf, kind, arguments) for leaf in COMMANDS for kind, arguments in mistaken(leaf)]


class StillRunningError(BaseException):
    """The command began its work: the value was no mistake to it."""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with files of all kinds, without network and cluster."""
    (tmp_path / "empty").touch()
    (tmp_path / "binary").write_bytes(bytes(range(256)) * 40)
    (tmp_path / "huge").write_bytes(b"x" * 300_000)
    (tmp_path / "json").write_text('[{"unexpected": true}]')
    (tmp_path / "below-a-file").write_text("a,b\n1,2\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "unreadable").symlink_to("/proc/self/mem")

    def refused(self: socket.socket, address: Any) -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(socket.socket, "connect", refused)
    for name in ("KUBECONFIG", "HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    return tmp_path


def files(place: Path) -> dict[str, str]:
    """Files below the folder and what they hold."""
    return {
        str(path.relative_to(place)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(place.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def devices() -> list[tuple[int, int]]:
    return [(Path(name).stat().st_ino, Path(name).stat().st_rdev) for name in ("/dev/null", "/dev/full")]


def outcome_of(leaf: Leaf, arguments: list[str]) -> int | str:
    """Exit code; or that it still ran after the time limit."""

    def late(*_: object) -> None:
        raise StillRunningError

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, TIME_LIMIT_S)
    try:
        PROGRAMS[leaf.program][1]([*leaf.words, *arguments])
    except SystemExit as end:
        return int(end.code or 0)
    except StillRunningError:
        return "still runs"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    return 0


COUNTS: Counter[tuple[str, str]] = Counter()
"""Mistakes by outcome and kind."""


@pytest.fixture(scope="module", autouse=True)
def _counts():
    """Print the counts by outcome and kind, shown with ``-s``; several workers print one part each."""
    yield
    lines = [f"{COUNTS.total()} mistakes over {len(COMMANDS)} commands"]
    for outcome in sorted({outcome for outcome, _ in COUNTS}):
        kinds = Counter({kind: count for (one, kind), count in COUNTS.items() if one == outcome})
        shown = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
        lines.append(f"{outcome}: {kinds.total()} ({shown})")
    print("", *lines, sep="\n", file=sys.__stderr__)


@pytest.mark.parametrize(("leaf", "kind", "arguments"), CASES, ids=[f"{leaf.name}: {kind}" for leaf, kind, _ in CASES])
def test_a_mistake_is_told_in_a_line_and_changes_nothing(place, capfd, leaf, kind, arguments):
    before, nodes = files(place), devices()
    code = outcome_of(leaf, arguments)
    out, err = capfd.readouterr()
    assert "Traceback" not in err
    assert devices() == nodes
    told = code in {1, 2}
    assert told or code in {0, 3, 4}, code  # 3 and 4: answers of the grid's commands
    COUNTS[f"told, exit {code}" if told else f"no mistake to the command, exit {code}", kind.rpartition(": ")[2]] += 1
    if told:
        assert files(place) == before
        lines = err.strip().splitlines()
        assert len(lines) <= MAX_LINES
        assert max(map(len, lines), default=0) <= MAX_LINE
        if leaf.words[-1] == "validate" and not lines:  # what is wrong with a file is its result
            assert kind.rpartition(" ")[2] in out
        else:
            assert lines[-1].startswith(PROGRAMS[leaf.program][2]) or '"level"' in lines[-1], lines[-1]


def test_there_are_200_mistakes_over_all_commands():
    assert len(CASES) >= 200
    assert {leaf.name for leaf, _, _ in CASES} == {leaf.name for leaf in COMMANDS}


def help_on(monkeypatch, raw: io.RawIOBase, leaf: Leaf) -> int | str:
    """Outcome of the help on a stream without a buffer, so that nothing is left to fail when it is closed."""
    stream = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)  # type: ignore[type-var]
    with monkeypatch.context() as patch, stream:
        patch.setattr(sys, "stdout", stream)
        patch.setattr(sys, "stderr", sys.stderr)  # click replaces both when a pipe is closed
        try:
            return outcome_of(leaf, ["--help"])
        finally:
            sys.stdout.close()  # the null device, where it has taken the place of the stream


@pytest.mark.parametrize("leaf", COMMANDS, ids=[leaf.name for leaf in COMMANDS])
def test_help_fits_60_columns_and_survives_full_disks_and_closed_pipes(place, capfd, monkeypatch, leaf):
    monkeypatch.setenv("COLUMNS", "60")
    assert outcome_of(leaf, ["--help"]) == 0
    assert "Usage:" in capfd.readouterr().out
    assert help_on(monkeypatch, io.FileIO("/dev/full", "w"), leaf) == 1
    assert capfd.readouterr().err.strip() == f"{PROGRAMS[leaf.program][2]}No space left on device"
    read, write = os.pipe()
    os.close(read)
    assert help_on(monkeypatch, io.FileIO(write, "w"), leaf) == 0
    assert capfd.readouterr().err == ""
    COUNTS["told, exit 1", "full disk"] += 1
    COUNTS["quiet, exit 0", "closed pipe"] += 1


@pytest.mark.parametrize("leaf", COMMANDS, ids=[leaf.name for leaf in COMMANDS])
def test_nan_and_infinity_are_no_numbers(leaf):
    for parameter in leaf.parameters:
        if isinstance(parameter.type, click.types.FloatParamType | click.FloatRange):
            for text in ("nan", "inf", "-inf"):
                with pytest.raises(click.BadParameter):
                    parameter.type.convert(text, parameter, None)
