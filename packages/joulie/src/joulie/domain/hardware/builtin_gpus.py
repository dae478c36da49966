"""GPUs of the built-in catalogue: the default limit of one device as NVML and AMD SMI list it, and its source.

Names are those that the drivers print. A device's own limits take precedence.
"""

from __future__ import annotations

from collections.abc import Mapping

from joulie.domain.hardware import builtin_sources as sources
from joulie.domain.hardware.builtin_sources import page
from joulie.domain.hardware.estimates import GPU_IDLE_SHARE
from joulie.domain.hardware.models import Evidence, GpuModel

_LIMIT_FACTS = ("cap_max_w", "default_w")

_GROK_L40S = page("L4 and L40S compared", "https://grokipedia.com/page/NVIDIA_L4_vs_L40S")
_NVL = page("One Stop Systems on H100 NVL and H200 NVL", "https://onestopsystems.com/pages/one-stop-systems-blog")
_MI200 = page("AMD releases Instinct MI210, AnandTech's table", "http://pipedot.org/article/5XCG1")
_HUGGING_FACE = "https://huggingface.co/hardware"

_LISTED: tuple[tuple[str, float, Evidence, tuple[str, ...]], ...] = (
    # Blackwell
    ("NVIDIA GB300", 1400.0, sources.EPOCH, ()),
    ("NVIDIA GB200", 1200.0, sources.EPOCH, ()),
    ("NVIDIA B300", 1100.0, sources.EPOCH, ("NVIDIA B300 SXM6 AC",)),
    ("NVIDIA B200", 1000.0, sources.EPOCH, ("NVIDIA B200 SXM6 180GB",)),
    ("NVIDIA B100", 700.0, sources.EPOCH, ()),
    (
        "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        600.0,
        page(
            "NVIDIA RTX PRO 6000 Blackwell",
            "https://gpu.name/posts/nvidia-unveils-rtx-pro-6000-blackwell-gpu-with-24-064-cores-and-96gb-memory",
        ),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition",),
    ),
    (
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        300.0,
        page(
            "RTX 6000D teardown",
            "https://pepelac.news/de/posts/id27081-nvidia-rtx-6000d-serverkarte-mit-84-gb-speicher-im-teardown",
        ),
        (),
    ),
    ("NVIDIA GeForce RTX 5090", 575.0, page("Hugging Face hardware", f"{_HUGGING_FACE}?view=table"), ()),
    # Hopper
    ("NVIDIA H200 NVL", 600.0, _NVL, ()),
    ("NVIDIA H100 PCIe", 350.0, sources.EPOCH, ("NVIDIA H100 80GB PCIe",)),
    ("NVIDIA H800", 700.0, sources.EPOCH, ("NVIDIA H800 SXM5",)),
    ("NVIDIA H20", 400.0, sources.EPOCH, ("NVIDIA H20 96GB",)),
    ("NVIDIA GH200 480GB", 700.0, sources.EPOCH, ("NVIDIA GH200 120GB", "NVIDIA GH200", "NVIDIA GH200 144G HBM3e")),
    # Ada Lovelace
    ("NVIDIA L40", 300.0, sources.EPOCH, ()),
    ("NVIDIA L20", 275.0, sources.EPOCH, ()),
    ("NVIDIA L4", 72.0, sources.EPOCH, ()),
    (
        "NVIDIA RTX 6000 Ada Generation",
        300.0,
        page("RTX 6000 Ada, TGP", "https://visualfoodie.com/understanding-the-power-needs-of-the-rtx-pro-6000"),
        (),
    ),
    ("NVIDIA GeForce RTX 4080", 320.0, sources.EPOCH, ()),
    # Ampere
    ("NVIDIA A100-SXM4-80GB", 400.0, sources.EPOCH, ("NVIDIA A100 SXM 80GB",)),
    ("NVIDIA A100-SXM4-40GB", 400.0, sources.EPOCH, ("NVIDIA A100 SXM 40GB",)),
    ("NVIDIA A100 80GB PCIe", 300.0, sources.EPOCH, ("NVIDIA A100-PCIE-80GB",)),
    ("NVIDIA A800-SXM4-80GB", 400.0, sources.EPOCH, ()),
    ("NVIDIA A800 40GB PCIe", 250.0, sources.EPOCH, ("NVIDIA A800-PCIE-40GB",)),
    ("NVIDIA A30", 165.0, page("Hugging Face hardware, A30", f"{_HUGGING_FACE}/a30"), ()),
    ("NVIDIA RTX A6000", 300.0, sources.EPOCH, ()),
    ("NVIDIA RTX A5000", 230.0, sources.EPOCH, ()),
    ("NVIDIA RTX A4000", 140.0, sources.EPOCH, ()),
    ("NVIDIA GeForce RTX 3090 Ti", 450.0, sources.EPOCH, ()),
    ("NVIDIA GeForce RTX 3090", 350.0, sources.EPOCH, ()),
    ("NVIDIA GeForce RTX 3080", 320.0, sources.EPOCH, ()),
    # Turing, Volta, Pascal, Maxwell
    ("Quadro RTX 8000", 260.0, sources.EPOCH, ()),
    ("Quadro RTX 6000", 260.0, sources.EPOCH, ()),
    ("Quadro RTX 5000", 230.0, sources.EPOCH, ()),
    ("NVIDIA GeForce RTX 2080 Ti", 250.0, sources.EPOCH, ()),
    ("Tesla V100S-PCIE-32GB", 250.0, sources.EPOCH, ()),
    ("Tesla V100-PCIE-32GB", 250.0, sources.EPOCH, ()),
    ("Tesla V100-PCIE-16GB", 250.0, sources.EPOCH, ()),
    ("Tesla V100-SXM3-32GB", 300.0, sources.EPOCH, ()),
    ("NVIDIA TITAN V", 250.0, sources.EPOCH, ()),
    ("Tesla P100-SXM2-16GB", 300.0, sources.QUATTOR, ()),
    ("Tesla P40", 250.0, sources.EPOCH, ()),
    ("Tesla P4", 75.0, sources.EPOCH, ()),
    ("NVIDIA GeForce GTX 1080 Ti", 250.0, sources.EPOCH, ()),
    # AMD
    ("AMD Instinct MI355X", 1400.0, sources.EPOCH, ("MI355X", "AMD Instinct MI355X OAM")),
    ("AMD Instinct MI350X", 1000.0, sources.EPOCH, ("MI350X", "AMD Instinct MI350X OAM")),
    ("AMD Instinct MI325X", 1000.0, sources.EPOCH, ("MI325X", "AMD Instinct MI325X OAM")),
    ("AMD Instinct MI308X", 750.0, sources.EPOCH, ("MI308X", "AMD Instinct MI308X OAM")),
    ("AMD Instinct MI300A", 760.0, sources.EPOCH, ("MI300A",)),
    ("AMD Instinct MI250X", 500.0, sources.EPOCH, ("MI250X", "AMD Instinct MI250X / MI250")),
    ("AMD Instinct MI250", 560.0, _MI200, ("MI250",)),
    ("AMD Instinct MI210", 300.0, _MI200, ("MI210",)),
    ("AMD Instinct MI100", 300.0, _MI200, ("MI100",)),
    (
        "AMD Instinct MI60",
        300.0,
        page("Hugging Face hardware, MI60", f"{_HUGGING_FACE}/mi60"),
        ("MI60", "AMD Radeon Instinct MI60"),
    ),
    ("AMD Instinct MI50", 300.0, _MI200, ("MI50", "AMD Radeon Instinct MI50")),
)


def builtin_gpus() -> tuple[GpuModel, ...]:
    """All GPUs."""
    return (*_PUBLISHED, *_TRACE, *_MEASURED, *(_listed(*row) for row in _LISTED))


def _gpu(
    key: str,
    limits_w: tuple[float, float],
    idle_w: float,
    evidence: Mapping[str, Evidence],
    *,
    gamma: float | None = None,
    max_w: float | None = None,
    aliases: tuple[str, ...] = (),
    stand_in_for: tuple[str, ...] = (),
) -> GpuModel:
    """A GPU whose default limit is its largest, unless `max_w` says otherwise."""
    vendor = "AMD" if key.startswith("AMD ") else "NVIDIA"
    return GpuModel(
        key=key,
        vendor=vendor,
        cap_min_w=limits_w[0],
        cap_max_w=max_w or limits_w[1],
        default_w=limits_w[1],
        idle_w=idle_w,
        compute_gamma=gamma,
        aliases=aliases,
        stand_in_for=stand_in_for,
        evidence=evidence,
    )


def _evidence(limit: Evidence, minimum: Evidence, idle: Evidence, gamma: Evidence | None = None) -> dict[str, Evidence]:
    found = {"cap_min_w": minimum, "idle_w": idle} | dict.fromkeys(_LIMIT_FACTS, limit)
    return found if gamma is None else found | {"compute_gamma": gamma}


def _listed(key: str, limit_w: float, source: Evidence, aliases: tuple[str, ...]) -> GpuModel:
    """A GPU of which the default limit alone is published."""
    evidence = _evidence(source, sources.HALF_LIMIT, sources.IDLE_SHARE)
    return _gpu(key, (limit_w / 2.0, limit_w), GPU_IDLE_SHARE * limit_w, evidence, aliases=aliases)


def _published_model(source: Evidence) -> dict[str, Evidence]:
    model = sources.PUBLISHED_MODEL
    return _evidence(source, model, model, model)


_PUBLISHED = (
    _gpu(
        "NVIDIA H100 NVL",
        (200.0, 400.0),
        60.0,
        _published_model(sources.EPOCH),
        gamma=1.50,
        aliases=("H100 NVL 94GB",),
    ),
    _gpu(
        "NVIDIA H100 80GB HBM3",
        (350.0, 700.0),
        120.0,
        _published_model(sources.EPOCH),
        gamma=1.50,
        aliases=("H100 SXM", "H100 SXM5", "H100 SXM5 80GB", "NVIDIA H100 SXM5 80GB HBM3"),
    ),
    _gpu("NVIDIA L40S", (200.0, 350.0), 60.0, _published_model(_GROK_L40S), gamma=1.40),
    _gpu(
        "AMD Instinct MI300X",
        (350.0, 750.0),
        100.0,
        _published_model(sources.EPOCH),
        gamma=0.85,
        aliases=("MI300X", "AMD Instinct MI300X OAM"),
        stand_in_for=("AMD Instinct MI300X VF",),
    ),
    _gpu(
        "AMD Radeon Pro W7900",
        (200.0, 295.0),
        40.0,
        _published_model(sources.PUBLISHED_MODEL),
        gamma=1.20,
        aliases=("W7900",),
        stand_in_for=("AMD Radeon Pro W7900 Dual Slot",),
    ),
)
"""Those of the published experiments: limits by their source, the rest as the experiments assume it."""

_TRACE = (
    _gpu("Tesla T4", (35.0, 70.0), 10.0, _evidence(sources.EPOCH, sources.HALF_LIMIT, sources.FGD_POWER)),
    _gpu(
        "Tesla V100-SXM2-16GB",
        (150.0, 300.0),
        30.0,
        _evidence(sources.EPOCH, sources.HALF_LIMIT, sources.FGD_POWER),
        aliases=("V100M16",),
    ),
    _gpu(
        "Tesla V100-SXM2-32GB",
        (150.0, 300.0),
        30.0,
        _evidence(sources.EPOCH, sources.HALF_LIMIT, sources.FGD_POWER),
        aliases=("V100M32",),
    ),
    # The trace hides what G2 and G3 are; its power model gives G2 the A10's figures and G3 its own.
    _gpu(
        "NVIDIA A10",
        (75.0, 150.0),
        30.0,
        _evidence(sources.EPOCH, sources.HALF_LIMIT, sources.FGD_POWER),
        stand_in_for=("G2",),
    ),
    _gpu("G3", (200.0, 400.0), 50.0, _evidence(sources.FGD_POWER, sources.HALF_LIMIT, sources.FGD_POWER)),
)
"""Those of the Alibaba GPU trace, with the idle power of its power model."""

_MEASURED = (
    _gpu("NVIDIA A40", (100.0, 300.0), 30.0, _evidence(sources.ZEUS_A40, sources.ZEUS_A40, sources.IDLE_A40)),
    _gpu(
        "Tesla P100-PCIE-16GB",
        (125.0, 250.0),
        25.0,
        _evidence(sources.ZEUS_P100, sources.ZEUS_P100, sources.FGD_POWER),
        aliases=("P100", "Tesla P100-PCIE-12GB"),
    ),
    _gpu(
        "NVIDIA H200",
        (200.0, 700.0),
        119.4,
        _evidence(sources.NVML_H200, sources.NVML_H200, sources.CONTEXT_H200),
        aliases=("NVIDIA H200 SXM", "NVIDIA H200 SXM 141GB"),
    ),
    _gpu(
        "NVIDIA GeForce RTX 4090",
        (150.0, 450.0),
        GPU_IDLE_SHARE * 450.0,
        _evidence(sources.NVIDIA_SMI, sources.NVIDIA_SMI, sources.IDLE_SHARE),
        max_w=600.0,
    ),
    _gpu(
        "NVIDIA A100-PCIE-40GB",
        (125.0, 250.0),
        GPU_IDLE_SHARE * 250.0,
        _evidence(sources.NVIDIA_SMI, sources.HALF_LIMIT, sources.IDLE_SHARE),
        aliases=("NVIDIA A100 40GB PCIe",),
    ),
    _gpu(
        "NVIDIA A10G",
        (150.0, 300.0),
        GPU_IDLE_SHARE * 300.0,
        _evidence(sources.NVIDIA_SMI, sources.HALF_LIMIT, sources.IDLE_SHARE),
    ),
    _gpu(
        "NVIDIA A16",
        (31.0, 62.0),
        GPU_IDLE_SHARE * 62.0,
        _evidence(sources.NVIDIA_SMI, sources.HALF_LIMIT, sources.IDLE_SHARE),
    ),
)
"""Those whose limits were read from a device. An A16 is four GPUs of 62 W on a card of 250 W."""
