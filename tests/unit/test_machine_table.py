"""What the agent does on every modelled machine, cell by cell; the documentation's table is made of the same rows."""

from pathlib import Path

import pytest

from joulie_lab.benchmarks.lives.machine_table import MachineRow, machine_row
from joulie_lab.benchmarks.lives.runs import LivesResult
from joulie_lab.benchmarks.results import read_result
from joulie_lab.machines.library import MACHINES

pytestmark = pytest.mark.slow

COMMITTED = Path(__file__).parents[2] / "benchmarks/results/lives.json"

FOUND = {
    "xeon-e-2388g": "1 x 8 cores",
    "xeon-8490h-8s": "8 x 60 cores",
    "xeon-9242": "2 x 48 cores",
    "epyc-9965": "2 x 192 cores",
    "dgx-h100": "2 x 56 cores, 8 GPUs",
    "mi300x": "2 x 96 cores, 8 GPUs",
    "gh200": "1 x 72 cores, 1 GPUs",
    "two-vendors": "2 x 40 cores, 4 GPUs",
}
NO_POWER = {"ampere-altra", "graviton3", "vm-intel", "vm-amd", "gh200"}
NO_CONTROL = {"graviton3", "vm-intel", "vm-amd"}
RAPL = {name for name, spec in MACHINES.items() if spec.rapl and spec.rapl.limits and not spec.rapl.locked}
HSMP = {"epyc-9654", "epyc-9965", "mi300x"}  # 60 % of an EPYC 7763 is below what HSMP takes
MINIMUM_FREQUENCY_IS_TOO_MUCH = {"epyc-7742", "dgx-a100"}


@pytest.fixture(scope="module")
def rows() -> dict[str, MachineRow]:
    return {name: machine_row(name) for name in MACHINES}


@pytest.mark.parametrize("name", MACHINES)
def test_every_cell(rows: dict[str, MachineRow], name: str) -> None:
    row, spec = rows[name], MACHINES[name]
    assert row.found == FOUND.get(name, row.found)
    assert "None" not in row.found
    assert (row.power_error is None) is (name in NO_POWER)
    assert (row.power_error or 0.0) < 0.02
    backend = "none" if name in NO_CONTROL else "rapl" if name in RAPL else "hsmp" if name in HSMP else "dvfs"
    assert row.cpu.backend == backend
    unconfirmed = backend == "dvfs" and name in NO_POWER | MINIMUM_FREQUENCY_IS_TOO_MUCH
    assert row.cpu.result == ("blocked" if backend == "none" else "unconfirmed" if unconfirmed else "applied")
    assert row.cpu.power_share == pytest.approx(1.0) if backend == "none" else row.cpu.power_share < 0.85
    if spec.gpu is None:
        assert row.gpu is None
    else:
        assert row.gpu is not None
        backends = {"nvidia": "nvml", "amd": "amdgpu"}
        expected = "+".join(dict.fromkeys(backends[gpu.vendor] for gpu in spec.gpu_kinds))
        assert (row.gpu.backend, row.gpu.result) == (expected, "applied")
        assert row.gpu.power_share == pytest.approx(0.6, abs=0.01)
    assert row.lifted
    assert row.restored


def test_the_documentation_shows_these_rows(rows: dict[str, MachineRow]) -> None:
    committed = read_result(COMMITTED, LivesResult)
    assert {name: (row.found, row.cpu.backend, row.cpu.result) for name, row in committed.table.items()} == {
        name: (row.found, row.cpu.backend, row.cpu.result) for name, row in rows.items()
    }
