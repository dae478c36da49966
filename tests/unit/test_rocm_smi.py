"""rocm-smi against a command of our own that keeps one file a card, and exits with 0 whatever it does."""

from pathlib import Path

import pytest

from joulie.adapters.cpu.cpufreq import Cpufreq
from joulie.adapters.cpu.cpuinfo import CpuInfo
from joulie.adapters.gpu.pci import AMD
from joulie.adapters.gpu.rocm_smi import RocmSmi
from joulie.adapters.saved_limits import SavedLimits
from joulie.apps.agent.gpus import GpuBackends
from joulie.apps.agent.host import Host, HostBackends
from joulie.domain.actuation import WantedCap
from joulie.domain.dvfs import DvfsSettings
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie.domain.quantities import InvalidQuantityError
from joulie.ports.devices import ControlFailedError, ControlRefusedError, DeviceKind, NoBackendError, PowerDevice

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
    if [ -s refusal ]; then
        cat refusal
        exit 0
    fi
    shift
    numbers=
    while [ "$1" != --setpoweroverdrive ]; do
        numbers="$numbers $1"
        shift
    done
    for number in $numbers; do
        if [ -e "refuses$number" ]; then
            echo "GPU[$number]: Permission denied"
        else
            echo "GPU[$number]: Successfully set power to: $2W"
            echo "$2.0" > "card$number"
        fi
    done
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
    with pytest.raises(error, match=r"set 200 W on GPU card0: 300 W in force: ROCm System .*GPU\[0\]"):
        smi.set_limit("card0", 200.0)


def test_h7_the_command_is_called_three_times_for_eight_gpus(folder: Path) -> None:
    for number in range(8):
        (folder / f"card{number}").write_text("300.0")
    smi = RocmSmi(str(folder / "rocm-smi"), lambda: 0.0)
    assert smi.unavailable() is None
    ids = [device.id for device in smi.devices()]
    assert smi.set_limits(dict.fromkeys(ids, 210.0)) == dict.fromkeys(ids, 210.0)
    assert [device.limit_w for device in smi.devices()] == [210.0] * 8
    assert smi.unavailable() is None
    calls = (folder / "calls").read_text().splitlines()
    assert len(calls) == 3
    assert calls[1] == "-d 0 1 2 3 4 5 6 7 --setpoweroverdrive 210 --autorespond y"


def test_cards_that_refuse_and_cards_that_are_gone_do_not_stop_the_others(smi: RocmSmi, folder: Path) -> None:
    (folder / "refuses0").touch()
    results = smi.set_limits({"card0": 200.0, "card1": 210.0, "card7": 220.0})
    assert isinstance(results["card0"], ControlRefusedError)
    assert str(results["card0"]) == "set 200 W on GPU card0: 300 W in force: GPU[0]: Permission denied"
    assert results["card1"] == 210.0
    assert isinstance(results["card7"], ControlFailedError)


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


def test_h7_a_cycle_of_the_agent_calls_the_command_three_times_and_one_without_change_once(folder: Path) -> None:
    for number in range(8):
        (folder / f"card{number}").write_text("300.0")
    now_s = [0.0]
    smi = RocmSmi(str(folder / "rocm-smi"), lambda: now_s[0])
    backends = HostBackends(
        cpu_info=lambda: CpuInfo("cpu", "AuthenticAMD", 1, 8, 16),
        cpu_limiters=(),
        frequency=Cpufreq(folder / "sys"),
        cpu_meters=(),
        gpus=(GpuBackends(AMD, (smi,)),),
        store=SavedLimits(folder / "state/limits.json", folder / "proc"),
        catalogue=BUILTIN_CATALOGUE,
    )
    boot_id = folder / "proc/sys/kernel/random/boot_id"
    boot_id.parent.mkdir(parents=True)
    boot_id.write_text("00000001-8b1c-4ec5-9d3a-70f4cc4f9f8a\n")
    host = Host(backends, DvfsSettings())

    def calls_of(cap: WantedCap) -> int:
        now_s[0] += 20.0
        before = len(_calls(folder))
        host.observe_gpu(now_s[0])
        assert host.enforce_gpu(cap).result == "applied"
        return len(_calls(folder)) - before

    eco = WantedCap(cap_w=210.0)
    assert [calls_of(eco), calls_of(eco), calls_of(WantedCap())] == [3, 1, 3]
    assert {(folder / f"card{number}").read_text().strip() for number in range(8)} == {"300.0"}


def _calls(folder: Path) -> list[str]:
    calls = folder / "calls"
    return calls.read_text().splitlines() if calls.exists() else []
