"""The `joulie` group: light, honest about errors."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from joulie import __version__
from joulie.apps.cli import main as main_module
from joulie.apps.kubectl import main as kubectl_main
from joulie.program.commands import Command, _added
from joulie.program.errors import UserError

HEAVY = ("numpy", "pydantic", "yaml", "rich", "numba", "polars", "matplotlib", "jinja2", "fmpy", "scipy")


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main_module.main(list(arguments))
    return int(caught.value.code or 0)


@pytest.mark.slow
@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        (["--help"], HEAVY),
        (["--version"], HEAVY),
        (["simulator", "--help"], ("numba", "scipy", "polars", "matplotlib")),
    ],
)
def test_help_imports_nothing_heavy(arguments, heavy):
    program = (
        "import sys\n"
        "from joulie.apps.cli.main import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        f"print('HEAVY', [name for name in {heavy!r} if name in sys.modules])\n"
    )
    out = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True).stdout
    assert "joulie" in out.lower()
    assert out.splitlines()[-1] == "HEAVY []"


@pytest.mark.slow
@pytest.mark.usefixtures("unmeasured")
def test_commands_that_read_and_print_start_without_numpy():
    commands = [one.module for one in kubectl_main._COMMANDS if one.path not in {"kubectl limits", "kubectl web"}]
    program = (
        "import sys\n"
        "sys.modules['numpy'] = None\n"
        "from importlib import import_module\n"
        f"for name in {[*commands, 'joulie.apps.cleanup.main']}: import_module(name)\n"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False).stderr
    assert told == "", "the traceback tells what imports NumPy"


def test_version(capsys):
    assert run("--version") == 0
    assert capsys.readouterr().out.strip().endswith(__version__)


def test_help_lists_every_command(capsys):
    assert run("--help") == 0
    out = capsys.readouterr().out
    for name in ("simulate", "scenario", "sweep", "bench", "fmu", "completion"):
        assert f"  {name}" in out


@pytest.mark.parametrize(
    "arguments", [["simulat"], ["simulate", "quick", "--nope"], ["simulate"], ["completion", "tcsh"]]
)
def test_wrong_usage_is_one_line_and_two(arguments, capsys):
    assert run(*arguments) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert len(streams.err.splitlines()) == 1
    assert streams.err.startswith("joulie: error: ")


def test_a_mistyped_command_is_told_the_similar_ones(capsys):
    assert run("operato") == 2
    assert "No such command 'operato'. Did you mean 'operator'?" in capsys.readouterr().err


def test_user_errors_are_a_line_each(monkeypatch, capsys):
    def fail(**_: object) -> None:
        raise UserError("first\nsecond")

    monkeypatch.setattr(main_module.cli, "main", fail)
    assert run() == 2
    assert capsys.readouterr().err == "joulie: error: first\njoulie: error: second\n"


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, main_module.click.Abort])
def test_interruption_is_130(monkeypatch, capsys, interruption):
    def interrupted(**_: object) -> None:
        raise interruption

    monkeypatch.setattr(main_module.cli, "main", interrupted)
    assert run() == 130
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell, capsys):
    assert run("completion", shell) == 0
    assert "_JOULIE_COMPLETE" in capsys.readouterr().out


def test_completion_knows_the_commands(monkeypatch, capsys):
    monkeypatch.setenv("_JOULIE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "joulie s")
    monkeypatch.setenv("COMP_CWORD", "1")
    run()
    assert capsys.readouterr().out.split() == ["plain,simulate", "plain,scenario", "plain,sweep", "plain,simulator"]


@pytest.fixture
def added(monkeypatch):
    """Commands as another distribution would register them."""
    commands = (
        Command("greet", "joulie.apps.cli.nodes", "Greet."),
        Command("caps nodes", "joulie.apps.cli.nodes", "Nodes, under caps."),
    )
    monkeypatch.setattr("joulie.program.commands._added", lambda: commands)


def test_other_distributions_add_commands_to_any_group(added, capsys):
    assert run("--help") == 0
    assert "greet" in capsys.readouterr().out
    assert run("caps", "--help") == 0
    shown = capsys.readouterr().out
    assert "Nodes, under caps." in shown
    assert "recommend" in shown
    assert run("caps", "nodes", "annotate", "--help") == 0
    assert "joulie caps nodes annotate" in capsys.readouterr().out


def test_u8_commands_of_the_laboratory_without_it(monkeypatch, capsys):
    monkeypatch.setattr("joulie.program.commands._added", lambda: ())
    assert run("--help") == 0
    assert "simulate" not in capsys.readouterr().out
    assert run("simulate", "quick") == 2
    assert capsys.readouterr().err == "joulie: error: simulate is not installed: pip install joulie-lab\n"


def test_u8_a_command_whose_package_is_missing_tells_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr("joulie.program.commands.import_module", missing_numba)
    assert run("simulate", "quick") == 2
    assert capsys.readouterr().err == "joulie: error: simulate requires numba: pip install joulie-lab\n"


def missing_numba(name: str) -> None:
    raise ModuleNotFoundError("No module named 'numba.core'", name="numba.core")


def test_a_plug_in_that_cannot_be_imported_is_told_and_left_out(monkeypatch, capsys):
    broken = EntryPoint("broken", "no_such_module:COMMANDS", "joulie.commands")
    whole = EntryPoint("whole", "joulie_lab.commands:COMMANDS", "joulie.commands")
    monkeypatch.setattr("joulie.program.commands.entry_points", lambda group: [broken, whole])
    _added.cache_clear()
    try:
        assert run("--help") == 0
        shown = capsys.readouterr()
    finally:
        _added.cache_clear()
    assert "simulate" in shown.out
    assert shown.err == (
        "joulie: warning: commands of no_such_module:COMMANDS cannot be loaded: No module named 'no_such_module'\n"
    )


def test_a_plug_in_neither_replaces_nor_stops_a_built_in_command(monkeypatch, capsys):
    def broken():
        raise ImportError("a plug-in that cannot be imported")

    monkeypatch.setattr("joulie.program.commands._added", broken)
    assert run("operator", "--help") == 0
    taken = (Command("operator", "joulie.apps.cli.nodes", "Not the operator."),)
    monkeypatch.setattr("joulie.program.commands._added", lambda: taken)
    assert run("--help") == 0
    assert "Not the operator." not in capsys.readouterr().out
