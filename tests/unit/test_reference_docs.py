"""The generated reference pages say what the code says."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie.domain.hardware.idle_readings import IDLE_READINGS

pytestmark = pytest.mark.slow

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


def test_every_gpu_has_what_users_read_of_its_idle_power_or_says_that_nobody_did(generator: ModuleType) -> None:
    page = generator.pages()["hardware.md"]
    assert set(IDLE_READINGS) <= {model.key for model in BUILTIN_CATALOGUE.gpus}
    for model in BUILTIN_CATALOGUE.gpus:
        (row,) = [line.split(" | ") for line in page.splitlines() if line.startswith(f"| {model.key} | ")]
        if (found := IDLE_READINGS.get(model.key)) is None:
            assert row[4] == "no reading"
        else:
            assert row[4].split(" (")[0] == f"{found.median_w:g}"
            number = row[5].strip(" |").strip("[]")
            assert f"\n{number}. `measured`: {found.source}" in page


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
