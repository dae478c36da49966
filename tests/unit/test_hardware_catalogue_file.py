import subprocess
import sys
from pathlib import Path

import pytest

from joulie.adapters.hardware_yaml import catalogue_of
from joulie.domain.hardware import BUILTIN_CATALOGUE

EXAMPLE = Path(__file__).parents[2] / "examples/hardware.yaml"


def test_without_a_file_it_is_the_built_in_one() -> None:
    assert catalogue_of(None) is BUILTIN_CATALOGUE


def test_a_file_extends_the_built_in_one() -> None:
    extended = catalogue_of(EXAMPLE)
    assert len(extended.cpus) + len(extended.gpus) > len(BUILTIN_CATALOGUE.cpus) + len(BUILTIN_CATALOGUE.gpus)


@pytest.mark.usefixtures("unmeasured")
def test_the_parser_is_loaded_only_for_a_file() -> None:
    """An agent runs on every node."""
    code = (
        "import sys; from joulie.adapters.hardware_yaml import catalogue_of; catalogue_of(None);"
        "print([name for name in ('numpy', 'yaml', 'pydantic') if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"
