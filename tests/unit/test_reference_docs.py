"""The generated reference pages say what the code says."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "generate_reference.py"


@pytest.fixture(scope="module")
def generator() -> Iterator[ModuleType]:
    sys.path.insert(0, str(SCRIPT.parent))
    spec = importlib.util.spec_from_file_location("generate_reference", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(SCRIPT.parent))


@pytest.mark.parametrize(
    "name",
    [
        "cli.md",
        "scenario.md",
        "kubernetes-api.md",
        "settings.md",
        "metrics.md",
        "dashboards.md",
        "hardware.md",
        "job-trace.md",
    ],
)
def test_page_is_what_the_code_would_write(generator: ModuleType, name: str) -> None:
    written = (generator.REFERENCE / name).read_text(encoding="utf-8")
    assert written == generator.pages()[name], "run: .venv/bin/python scripts/generate_reference.py"


def test_every_command_and_option_is_there(generator: ModuleType) -> None:
    page = generator.pages()["cli.md"]
    for heading in ("## joulie simulate", "## joulie sweep", "### joulie bench parity", "### joulie fmu build"):
        assert f"\n{heading}\n" in page
    assert "- `--cooling none|linear|dx|FILE.fmu`: Cooling plant." in page


def test_every_key_is_there_with_its_meaning(generator: ModuleType) -> None:
    page = generator.pages()["scenario.md"]
    assert "| `drain_hours` | number, 0 to 87840 | `0.0` | time after the arrival period for the queue to empty" in page
    assert "| `cpu_max_w` | number | required | CPU power of one node at full load, W. |" in page
    assert "Instead of a mapping: `none`, `linear`, `dx`." in page
