"""rocm-smi against a command of our own that keeps one file a card, and exits with 0 whatever it does."""

from pathlib import Path

import pytest

from joulie.adapters.gpu.rocm_smi import RocmSmi
from joulie.domain.quantities import InvalidQuantityError
from joulie.ports import ControlFailedError, ControlRefusedError, DeviceKind, NoBackendError, PowerDevice

COMMAND = r"""#!/bin/sh
cd "$(dirname "$0")" || exit 1
echo "$*" >> calls
case "$*" in
*--showmaxpower*)
    cat before
    printf '{'
    for card in card*; do
        number=${card#card}
        printf '"%s": {"Max Graphics Package Power (W)": "%s", "Unique ID": "%s", ' "$card" "$(cat "$card")" "$(cat id)"
        printf '"Card Series": "AMD Instinct MI210", "Card Model": "0x740f"}, '
    done
    printf '"system": {"Driver version": "6.8"}}'
    ;;
*--setpoweroverdrive*)
    if [ -s refusal ]; then cat refusal; else echo "$4.0" > "card$2"; fi
    ;;
esac
exit 0
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {"rocm-smi": COMMAND, "card0": "300.0", "card1": "300.0", "before": "", "id": "N/A", "refusal": ""}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "rocm-smi").chmod(0o755)
    return tmp_path


@pytest.fixture
def smi(folder: Path) -> RocmSmi:
    return RocmSmi(str(folder / "rocm-smi"))


def test_devices(smi: RocmSmi) -> None:
    assert smi.unavailable() is None
    assert smi.devices() == [
        PowerDevice(f"card{number}", DeviceKind.GPU, "AMD Instinct MI210", limit_w=300.0) for number in range(2)
    ]


def test_unique_ids_are_preferred(smi: RocmSmi, folder: Path) -> None:
    (folder / "id").write_text("0xa1b2")
    assert {device.id for device in smi.devices()} == {"0xa1b2"}


def test_a_limit_goes_to_one_card_without_questions(smi: RocmSmi, folder: Path) -> None:
    assert smi.set_limit("card1", 210.3) == 210.0
    assert "-d 1 --setpoweroverdrive 210 --autorespond y\n" in (folder / "calls").read_text()
    assert "--showpowercap" not in (folder / "calls").read_text(), "there is no such option"
    assert [device.limit_w for device in smi.devices()] == [300.0, 210.0]


@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        ("GPU[0]: Permission denied\nGPU[0]: Unable to set Power OverDrive to 200W", ControlRefusedError),
        ("GPU[0]: Not supported on the given system", ControlRefusedError),
        ("ERROR: GPU[0]: Value cannot be less than: 250W", ControlFailedError),
    ],
)
def test_refusals_that_exit_with_0(smi: RocmSmi, folder: Path, refusal: str, error: type[Exception]) -> None:
    (folder / "refusal").write_text(f"===== ROCm System Management Interface =====\n{refusal}\n=====\n")
    with pytest.raises(error, match=r"set 200 W on GPU card0: 300.0 W in force: ROCm System .*GPU\[0\]"):
        smi.set_limit("card0", 200.0)


def test_warnings_before_the_json(smi: RocmSmi, folder: Path) -> None:
    (folder / "before").write_text("WARNING: AMD GPU device(s) is/are in a low-power state.\n\n")
    assert len(smi.devices()) == 2


def test_a_card_without_a_cap(smi: RocmSmi, folder: Path) -> None:
    (folder / "card0").write_text("N/A")
    assert [device.limit_w for device in smi.devices()] == [None, 300.0]
    (folder / "card1").write_text("0.0")
    smi = RocmSmi(str(folder / "rocm-smi"))
    assert "reports no GPU power cap" in (smi.unavailable() or "")
    (folder / "refusal").write_text("Unavailable for secondary die.")
    with pytest.raises(ControlFailedError, match="unknown W in force: Unavailable"):
        smi.set_limit("card0", 200.0)


def test_a_card_that_is_not_there(smi: RocmSmi) -> None:
    with pytest.raises(ControlFailedError, match="lists no GPU card7"):
        smi.set_limit("card7", 200.0)


def test_output_that_is_no_json(tmp_path: Path) -> None:
    command = tmp_path / "rocm-smi"
    command.write_text("#!/bin/sh\necho 'ERROR: rocm_smi_lib not found'\n")
    command.chmod(0o755)
    assert "printed no JSON: ERROR: rocm_smi_lib not found" in (RocmSmi(str(command)).unavailable() or "")


def test_not_installed(tmp_path: Path) -> None:
    """Trap: command-line tools that the image does not have."""
    smi = RocmSmi(str(tmp_path / "rocm-smi"))
    assert "not installed" in (smi.unavailable() or "")
    with pytest.raises(NoBackendError, match="not installed"):
        smi.devices()


def test_a_limit_that_is_none(smi: RocmSmi) -> None:
    with pytest.raises(InvalidQuantityError, match="limit_w"):
        smi.set_limit("card0", -1.0)
