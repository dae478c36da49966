"""The machines that agents are tested on.

Cores, TDPs and limits are those of the built-in catalogue where it knows the model, else of the pages that `sources`
name. What neither states is an assumption: idle powers, powers at full load without a limit, and which zones the
firmware shows. Layouts follow the kernel's documentation (Documentation/power/powercap/powercap.rst,
Documentation/admin-guide/pm).
"""

from __future__ import annotations

from dataclasses import replace

from joulie.domain.hardware.builtin import BUILTIN_CATALOGUE
from joulie.domain.hardware.builtin_sources import ALTRA_LIST
from joulie_lab.machines.specs import AMD_ENERGY_UNIT_J, Cpu, Cpufreq, Gpu, Hsmp, Rapl, Spec

_GHZ = 1e9
_INTEL, _AMD = "GenuineIntel", "AuthenticAMD"
_SERVER_RAPL = Rapl(dram=True)
_AMD_RAPL = Rapl(limits=False, core=True, energy_unit_j=AMD_ENERGY_UNIT_J)
_PSTATE = Cpufreq("intel_pstate")
_AMD_PSTATE = Cpufreq("amd-pstate-epp")
_CPPC = Cpufreq("cppc_cpufreq")


def _cpu(
    vendor: str,
    model: str,
    cores: int,
    tdp_w: float,
    ghz: tuple[float, float],
    *,
    idle_w: float | None = None,
    threads_per_core: int = 2,
) -> Cpu:
    """A socket; it idles at a tenth of its TDP and would draw 1.25 of it, unless stated."""
    return Cpu(
        model,
        vendor,
        cores,
        tdp_w,
        0.1 * tdp_w if idle_w is None else idle_w,
        1.25 * tdp_w,
        ghz[0] * _GHZ,
        ghz[1] * _GHZ,
        threads_per_core,
    )


_XEON_E = _cpu(_INTEL, "Intel(R) Xeon(R) E-2388G CPU @ 3.20GHz", 8, 95.0, (0.8, 5.1))
_8380 = _cpu(_INTEL, "Intel(R) Xeon(R) Platinum 8380 CPU @ 2.30GHz", 40, 270.0, (0.8, 3.4), idle_w=25.0)
_8490H = _cpu(_INTEL, "Intel(R) Xeon(R) Platinum 8490H", 60, 350.0, (0.8, 3.5))
_9242 = _cpu(_INTEL, "Intel(R) Xeon(R) Platinum 9242 CPU @ 2.30GHz", 48, 350.0, (1.0, 3.8))
_6980P = _cpu(_INTEL, "Intel(R) Xeon(R) 6980P", 128, 500.0, (0.8, 3.9))
_8480C = _cpu(_INTEL, "Intel(R) Xeon(R) Platinum 8480C", 56, 350.0, (0.8, 3.8))
_8570 = _cpu(_INTEL, "INTEL(R) XEON(R) PLATINUM 8570", 56, 350.0, (0.8, 4.0))
_7742 = _cpu(_AMD, "AMD EPYC 7742 64-Core Processor", 64, 225.0, (1.5, 2.25))
_7763 = _cpu(_AMD, "AMD EPYC 7763 64-Core Processor", 64, 280.0, (1.5, 3.5))
_9654 = _cpu(_AMD, "AMD EPYC 9654 96-Core Processor", 96, 360.0, (0.4, 3.7))
_9965 = _cpu(_AMD, "AMD EPYC 9965 192-Core Processor", 192, 500.0, (0.6, 3.7))
_ALTRA = _cpu("", "", 80, 210.0, (1.0, 3.0), threads_per_core=1)
_GRAVITON3 = _cpu("", "", 64, 100.0, (1.0, 2.6), threads_per_core=1)
_GRACE = _cpu("", "", 72, 250.0, (0.081, 3.447), threads_per_core=1)

_A100 = Gpu("NVIDIA A100-SXM4-80GB", "nvidia", 60.0, 100.0, 400.0, 400.0, max_sm_hz=1.41e9)
_H100 = Gpu("NVIDIA H100 80GB HBM3", "nvidia", 75.0, 200.0, 700.0, 700.0, max_sm_hz=1.98e9)
_B200 = Gpu("NVIDIA B200", "nvidia", 140.0, 200.0, 1000.0, 1000.0, max_sm_hz=1.965e9)
_L40S = Gpu("NVIDIA L40S", "nvidia", 35.0, 100.0, 350.0, 350.0, max_sm_hz=2.52e9)
_GH200 = Gpu("NVIDIA GH200 480GB", "nvidia", 80.0, 100.0, 900.0, 900.0, max_sm_hz=1.98e9)
_MI210 = Gpu("AMD Instinct MI210", "amd", 40.0, 0.0, 300.0, 300.0, "0x740f")
_MI300X = Gpu("AMD Instinct MI300X", "amd", 140.0, 0.0, 750.0, 750.0, "0x74a1")

_8380_PAGE = (
    "https://hardwareluxx.de/index.php/artikel/hardware/prozessoren/"
    "56010-zwei-intel-xeon-platinum-8380-gegen-die-vorgaenger-im-test.html?start=10"
)
_9004_PAGE = "https://www.hpctech.co.jp/product/amd-epyc-9004-series/"
_GRACE_PAGE = (
    "two CPUs with their memory, 500 W: https://hardwaretimes.com/"
    "nvidia-announces-grace-cpu-up-2x-faster-than-amd-epyc-and-intel-xeon-parts-with-better-power-efficiency/"
)
_BASEPOD = (
    "https://docs.nvidia.com/dgx-basepod/reference-architecture-infrastructure-foundation-enterprise-ai/latest/"
    "core-components.html"
)

_TWO_8380 = Spec(
    "xeon-8380", "2 x Intel Xeon Platinum 8380", _8380, rapl=_SERVER_RAPL, cpufreq=_PSTATE, sources=(_8380_PAGE,)
)
_TWO_7763 = Spec(
    "epyc-7763",
    "2 x AMD EPYC 7763, with HSMP",
    _7763,
    rapl=_AMD_RAPL,
    cpufreq=Cpufreq("acpi-cpufreq", table_hz=(1.5e9, 2.0e9, 2.45e9, 3.5e9)),
    hsmp=Hsmp(225.0, 280.0),
)
_TWO_9654 = Spec(
    "epyc-9654",
    "2 x AMD EPYC 9654, with HSMP",
    _9654,
    rapl=_AMD_RAPL,
    cpufreq=_AMD_PSTATE,
    hsmp=Hsmp(100.0, 400.0),
    sources=(_9004_PAGE,),
)
_TWO_9965 = Spec(
    "epyc-9965", "2 x AMD EPYC 9965, with HSMP", _9965, rapl=_AMD_RAPL, cpufreq=_AMD_PSTATE, hsmp=Hsmp(100.0, 500.0)
)


def _without_hsmp(spec: Spec) -> Spec:
    title = spec.title.replace("with HSMP", "without HSMP")
    return replace(spec, name=f"{spec.name}-no-hsmp", title=title, hsmp=None)


MACHINES = {
    spec.name: spec
    for spec in (
        Spec(
            "xeon-e-2388g",
            "1 x Intel Xeon E-2388G, with platform and MMIO zones",
            _XEON_E,
            sockets=1,
            rapl=Rapl(core=True, uncore=True, psys=True, mmio=True),
            cpufreq=_PSTATE,
        ),
        _TWO_8380,
        replace(
            _TWO_8380,
            name="xeon-8380-locked",
            title="2 x Intel Xeon Platinum 8380, limits locked by the firmware",
            rapl=replace(_SERVER_RAPL, locked=True),
        ),
        replace(
            _TWO_8380,
            name="xeon-8380-lowered",
            title="2 x Intel Xeon Platinum 8380, firmware limit of 200 W",
            rapl=replace(_SERVER_RAPL, limit_w=200.0),
        ),
        Spec(
            "xeon-8490h-4s",
            "4 x Intel Xeon Platinum 8490H, no maximum stated",
            _8490H,
            sockets=4,
            rapl=replace(_SERVER_RAPL, max_power=False),
            cpufreq=_PSTATE,
        ),
        Spec(
            "xeon-8490h-8s",
            "8 x Intel Xeon Platinum 8490H",
            _8490H,
            sockets=8,
            rapl=_SERVER_RAPL,
            cpufreq=_PSTATE,
        ),
        Spec(
            "xeon-9242",
            "2 x Intel Xeon Platinum 9242, two dies each",
            _9242,
            dies=2,
            rapl=_SERVER_RAPL,
            cpufreq=_PSTATE,
            sources=("https://computerbase.de/2019-04/intel-xeon-platinum-9200-cascade-lake-ap",),
        ),
        Spec(
            "xeon-6980p",
            "2 x Intel Xeon 6980P",
            _6980P,
            rapl=replace(_SERVER_RAPL, psys=True),
            cpufreq=_PSTATE,
            sources=(
                "https://techpowerup.com/326957/intel-granite-rapids-ucc-powering-xeon-6-6980p-detailed-up-to-132-cores-possible",
            ),
        ),
        Spec(
            "epyc-7742",
            "2 x AMD EPYC 7742, which has no HSMP",
            _7742,
            rapl=_AMD_RAPL,
            cpufreq=Cpufreq("acpi-cpufreq", table_hz=(1.5e9, 2.0e9, 2.25e9)),
        ),
        _TWO_7763,
        _without_hsmp(_TWO_7763),
        _TWO_9654,
        _without_hsmp(_TWO_9654),
        _TWO_9965,
        _without_hsmp(_TWO_9965),
        Spec(
            "ampere-altra",
            "1 x Ampere Altra Q80-30, no RAPL",
            _ALTRA,
            sockets=1,
            cpufreq=_CPPC,
            sources=(ALTRA_LIST.source,),
        ),
        Spec(
            "graviton3",
            "1 x AWS Graviton3, no RAPL, no frequency scaling",
            _GRAVITON3,
            sockets=1,
            sources=("cores and clock, but no TDP: https://en.wikichip.org/wiki/AWS_Graviton3",),
        ),
        Spec("vm-intel", "Virtual machine on an Intel host", replace(_8490H, cores=8), sockets=1),
        Spec("vm-amd", "Virtual machine on an AMD host", replace(_7763, cores=8), sockets=1),
        Spec(
            "dgx-a100",
            "NVIDIA DGX A100: 2 x AMD EPYC 7742, 8 x A100",
            _7742,
            rapl=_AMD_RAPL,
            cpufreq=Cpufreq("acpi-cpufreq", table_hz=(1.5e9, 2.0e9, 2.25e9)),
            gpu=_A100,
            gpus=8,
        ),
        Spec(
            "dgx-h100",
            "NVIDIA DGX H100: 2 x Intel Xeon Platinum 8480C, 8 x H100",
            _8480C,
            rapl=_SERVER_RAPL,
            cpufreq=_PSTATE,
            gpu=_H100,
            gpus=8,
            sources=(_BASEPOD,),
        ),
        Spec(
            "dgx-b200",
            "NVIDIA DGX B200: 2 x Intel Xeon Platinum 8570, 8 x B200",
            _8570,
            rapl=_SERVER_RAPL,
            cpufreq=_PSTATE,
            gpu=_B200,
            gpus=8,
            sources=(_BASEPOD,),
        ),
        replace(_TWO_9654, name="mi300x", title="2 x AMD EPYC 9654, 8 x AMD Instinct MI300X", gpu=_MI300X, gpus=8),
        replace(_TWO_8380, name="l40s", title="2 x Intel Xeon Platinum 8380, 4 x NVIDIA L40S", gpu=_L40S, gpus=4),
        replace(
            _TWO_8380,
            name="two-vendors",
            title="2 x Intel Xeon Platinum 8380, 2 x NVIDIA L40S and 2 x AMD Instinct MI210",
            gpu=_L40S,
            gpus=2,
            other_gpu=_MI210,
            other_gpus=2,
        ),
        Spec(
            "gh200",
            "NVIDIA GH200: 1 x Grace, 1 x GPU",
            _GRACE,
            sockets=1,
            cpufreq=_CPPC,
            gpu=_GH200,
            gpus=1,
            sources=(_GRACE_PAGE,),
        ),
    )
}
"""By name."""


def public_sources(spec: Spec) -> tuple[str, ...]:
    """Public sources of a machine's figures: its own pages, then those of the catalogue's models; may be empty."""
    cpu = BUILTIN_CATALOGUE.cpu(spec.cpu.model).model
    catalogued = [cpu.evidence["tdp_w"].source] if cpu else []
    for kind in dict.fromkeys(spec.gpu_kinds):
        gpu = BUILTIN_CATALOGUE.gpu(kind.model).model
        if gpu and gpu.default_w == kind.default_w:
            catalogued.append(gpu.evidence["default_w"].source)
    return (*spec.sources, *catalogued)
