"""What long-running programs ask of Python's garbage collector."""

import gc
import sys

import pytest

from joulie.collector import no_collection, spare_what_lives_long
from joulie.program.commands import Command

pytestmark = pytest.mark.slow


def test_what_is_alive_is_not_traversed_again():
    gc.unfreeze()
    alive = [[index] for index in range(1000)]
    try:
        spare_what_lives_long()
        tracked = {id(one) for one in gc.get_objects()}
        assert gc.get_freeze_count() > len(alive)
        assert not tracked & {id(one) for one in alive}
    finally:
        gc.unfreeze()


def test_commands_are_imported_without_looking_for_garbage(tmp_path, monkeypatch):
    text = "import gc, click\nseen = gc.isenabled()\n@click.command()\ndef tried(): pass\n"
    (tmp_path / "tried_command.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    Command("tried", "tried_command", "").load()
    assert not sys.modules.pop("tried_command").seen
    assert gc.isenabled()


def test_whoever_looks_for_none_is_left_at_that():
    gc.disable()
    try:
        with pytest.raises(ZeroDivisionError), no_collection():
            raise ZeroDivisionError
        assert not gc.isenabled()
    finally:
        gc.enable()
