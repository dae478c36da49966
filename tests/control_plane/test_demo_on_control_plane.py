"""`joulie demo --control-plane`: every program as a process of its own, as a user starts them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.control_plane, pytest.mark.slow]


def test_the_demo_plays_on_a_real_control_plane(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "joulie", "demo", "--control-plane", "--jobs", "12", "--duration", "45"]
    done = subprocess.run([*command, "--report", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    samples = json.loads((tmp_path / "samples.json").read_text())
    assert samples[-1]["completed"] > 0
    last = {node["schedulable_class"] for node in samples[-1]["nodes"]}
    assert last <= {"performance", "eco", "draining"}
    assert any(node["control"] == "applied" and node["cpu_cap_pct"] == 60.0 for node in samples[-1]["nodes"])
