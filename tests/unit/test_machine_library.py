"""The library of modelled machines: figures that the catalogue confirms, and where each comes from."""

from __future__ import annotations

import pytest

from joulie.domain.hardware.builtin import BUILTIN_CATALOGUE
from joulie_lab.machines.library import MACHINES, public_sources


@pytest.mark.parametrize("spec", MACHINES.values(), ids=lambda spec: spec.name)
def test_a_machine_has_the_figures_of_its_catalogued_parts(spec):
    cpu = BUILTIN_CATALOGUE.cpu(spec.cpu.model).model
    if cpu is not None:
        assert spec.cpu.tdp_w == cpu.tdp_w
        assert spec.cpu.cores == cpu.cores_per_socket or spec.name.startswith("vm-")
        assert spec.cpu.max_hz <= (cpu.boost_hz or float("inf"))
    assert public_sources(spec) or spec.name == "xeon-e-2388g"
