import math
from pathlib import Path

import pytest

from joulie.adapters.hardware_yaml.models import HardwareFileError, load_catalogue, parse_catalogue
from joulie.domain.hardware import BUILTIN_CATALOGUE, Provenance, Quality

EXAMPLE = Path(__file__).parents[2] / "examples" / "hardware.yaml"
GPU = """\
gpus:
  - key: My GPU
    vendor: NVIDIA
    provenance: exact
    source: data sheet
    cap_min_w: 100
    cap_max_w: 300
    default_w: 250
    idle_w: 20
"""


def test_example_extends_the_builtin_catalogue() -> None:
    catalogue = load_catalogue(EXAMPLE)
    card = catalogue.gpu("NVIDIA GeForce RTX 3060")
    xeon = catalogue.cpu("Intel(R) Xeon(R) Gold 6312U CPU @ 2.40GHz")
    assert card.quality is xeon.quality is Quality.EXACT
    assert xeon.model is not None
    assert xeon.model.base_hz == 2.4e9
    assert xeon.model.evidence["curve_w"].provenance is Provenance.ASSUMED
    assert xeon.model.evidence["tdp_w"].provenance is Provenance.EXACT
    assert catalogue.gpu("NVIDIA L40S") == BUILTIN_CATALOGUE.gpu("NVIDIA L40S")


CPU = """\
cpus:
  - key: My CPU
    vendor: Intel
    provenance: measured
    source: power models of PEAKS, trained on this rack
    cores_per_socket: 24
    tdp_w: 185
    cap_min_w: 185
    cap_max_w: 185
    power_model: {k0: 371.74, k1: -91.5, k2: -0.03186}
"""


def test_g16_a_power_model_of_peaks_is_a_curve() -> None:
    model = parse_catalogue(CPU, "f.yaml").cpu("My CPU").model
    assert model is not None
    assert len(model.curve_w) == 11
    assert model.curve_w[0] == pytest.approx(371.74 - 91.5)
    assert model.curve_w[5] == pytest.approx(371.74 - 91.5 * math.exp(-0.03186 * 50.0))
    assert model.curve_w[-1] == pytest.approx(371.74 - 91.5 * math.exp(-3.186))
    assert model.evidence["curve_w"].provenance is Provenance.MEASURED


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CPU + "    curve_w: [40, 200]\n", r"^f\.yaml:2: cpus\.0: .*either curve_w or power_model"),
        (CPU.replace("k1: -91.5", "k1: 91.5"), r"^f\.yaml:2: My CPU: .*curve_w must not fall"),
        (CPU.replace("k2: -0.03186", "k2: 30"), r"^f\.yaml:10: cpus\.0\.power_model\.k2"),
        ("", r"^f\.yaml:1: is empty"),
        ("[1", r"^f\.yaml:1: expected"),
        ("gpus: 3", r"^f\.yaml:1: gpus: Input should be a valid list"),
        ("\nbogus: []", r"^f\.yaml:2: bogus: Extra inputs"),
        (GPU.replace("idle_w: 20", "idle_w: .nan"), r"^f\.yaml:9: gpus\.0\.idle_w: .*finite"),
        (GPU.replace("idle_w: 20", "idle_w: -1"), r"^f\.yaml:9: gpus\.0\.idle_w"),
        (GPU.replace("idle_w: 20", "idle_w: '20'"), r"^f\.yaml:9: gpus\.0\.idle_w"),
        (GPU.replace("idle_w: 20", "idle_w: true"), r"^f\.yaml:9: gpus\.0\.idle_w"),
        (GPU.replace("    idle_w: 20\n", ""), r"^f\.yaml:2: gpus\.0\.idle_w: Field required"),
        (GPU.replace("provenance: exact", "provenance: hearsay"), r"^f\.yaml:4: gpus\.0\.provenance"),
        (GPU.replace("default_w: 250", "default_w: 400"), r"^f\.yaml:2: My GPU: .*within the device's range"),
        (GPU + "    idle_w: 30\n", r"^f\.yaml:10: 'idle_w' is stated twice"),
        (GPU + "    facts: {weight: {provenance: exact, source: x}}\n", r"^f\.yaml:2: My GPU: .*weight"),
        (GPU + "    aliases: [W7900]\n", r"^f\.yaml:2: 'W7900' names both 'AMD Radeon Pro W7900' and 'My GPU'"),
        ("a: &a [1]\ngpus: *a", r"^f\.yaml:2: references"),
        ("!!python/object/apply:os.system [true]", r"^f\.yaml:1: could not determine a constructor"),
        ("[" * 1200, r"^f\.yaml:1: (is nested too deeply|expected)"),
        ("gpus: [\x00]", r"^f\.yaml:1: "),
    ],
)
def test_errors_name_file_and_line(text: str, message: str) -> None:
    with pytest.raises(HardwareFileError, match=message):
        parse_catalogue(text, "f.yaml")


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(HardwareFileError, match=r"nothing\.yaml: cannot be read"):
        load_catalogue(tmp_path / "nothing.yaml")
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"gpus: \xff")
    with pytest.raises(HardwareFileError, match=r"latin\.yaml: cannot be read"):
        load_catalogue(latin)
