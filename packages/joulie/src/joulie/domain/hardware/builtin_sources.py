"""Where the built-in catalogue's figures come from. Every source was opened, and states the figures that name it."""

from __future__ import annotations

from joulie.domain.hardware.models import Evidence, Provenance

_CODECARBON = "https://github.com/mlco2/codecarbon/blob/master/codecarbon/data/hardware"

AMD_LIST = Evidence(
    Provenance.EXACT,
    f"AMD's EPYC specifications as CodeCarbon keeps them: {_CODECARBON}/cpu_dataset_builder/amd_cpu_server_dataset.csv",
)
INTEL_LIST = Evidence(
    Provenance.EXACT,
    f"Intel ARK as CodeCarbon keeps it: {_CODECARBON}/cpu_dataset_builder/intel_cpu_ark_dataset.csv",
)
CODECARBON_TDP = Evidence(Provenance.LISTED, f"CodeCarbon's table of TDPs: {_CODECARBON}/cpu_power.csv")
ECO_CI = Evidence(
    Provenance.LISTED,
    "Eco CI's models of GitHub's runners (8272CL, 8370C, 8171M, E5-2673 v3): "
    "https://github.com/green-coding-solutions/eco-ci-energy-estimation",
)
IMPACT_FRAMEWORK = Evidence(
    Provenance.LISTED,
    "Green Software Foundation, Impact Framework, TDP finder: "
    "https://github.com/Green-Software-Foundation/if/blob/main/docs/implementations/tdp-finder.md",
)
ALTRA_LIST = Evidence(
    Provenance.LISTED,
    "Ampere's first eleven Altra models, table by heise online, June 2020: https://www.heise.de/news/"
    "Ampere-Altra-ARM-Prozessoren-mit-bis-zu-80-Kernen-3-3-GHz-und-PCIe-4-0-4794196.html",
)
ALTRA_MAX = Evidence(
    Provenance.LISTED,
    "Altra Max M128-30, 128 cores, 3.0 GHz, 250 W, photographed part: https://www.hardwareluxx.de/index.php/news/"
    "hardware/prozessoren/57030-start-der-ampere-altra-max-cpus-mit-128-arm-kernen-steht-bevor.html",
)
EPOCH = Evidence(
    Provenance.LISTED,
    "Epoch AI, Machine Learning Hardware (https://epoch.ai/data/machine-learning-hardware), which links data sheets; "
    "read in https://github.com/natepaulo43-oss/Capstone-AI-Capex-Wall/blob/main/data/ml_hardware.csv",
)
QUATTOR = Evidence(
    Provenance.LISTED,
    "Quattor's hardware templates: https://github.com/quattor/template-library-standard/tree/main/hardware/card/gpu/nvidia",
)
NVIDIA_SMI = Evidence(
    Provenance.MEASURED, "power limits that nvidia-smi prints on this device, in logs of public repositories"
)
NVML_H200 = Evidence(Provenance.MEASURED, "power limits that NVML states on an H200, driver 580.159.04")
CONTEXT_H200 = Evidence(
    Provenance.MEASURED, "an H200 whose only process keeps a context and does nothing, 119.2 to 119.6 W"
)
NO_CAP_RANGE = Evidence(
    Provenance.ASSUMED, "no configurable TDP is published: the TDP; the device's own range takes precedence"
)
TYPICAL_CURVE = Evidence(
    Provenance.PROXY, "median server of this TDP: 515 SPECpower_ssj2008 results (see Power without sensors)"
)
SPECPOWER = Evidence(Provenance.MEASURED, "SPECpower_ssj2008 result of a two-socket node, wall power")
PUBLISHED_MODEL = Evidence(Provenance.ASSUMED, "Joulie's published cluster simulation model")
FGD_POWER = Evidence(Provenance.ASSUMED, "power model for the Alibaba GPU 2023 trace (openb)")
HALF_LIMIT = Evidence(Provenance.ASSUMED, "half of the default limit; the device's own constraint takes precedence")
IDLE_SHARE = Evidence(Provenance.ASSUMED, "15 % of the default limit")
IDLE_A40 = Evidence(Provenance.ASSUMED, "a tenth of the default limit")
ZEUS_A40 = Evidence(Provenance.MEASURED, "power limits swept on an A40 by the Zeus project (NSDI'23)")
ZEUS_P100 = Evidence(Provenance.MEASURED, "power limits swept on a P100 by the Zeus project (NSDI'23)")


def page(name: str, url: str) -> Evidence:
    """A page that states a part's figure."""
    return Evidence(Provenance.LISTED, f"{name}: {url}")
