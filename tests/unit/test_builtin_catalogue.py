"""The built-in catalogue: what clouds and vendors ship, by the strings that their machines print."""

import re
import subprocess
import sys

import pytest

from joulie.domain.accounting.profiles import label_form
from joulie.domain.hardware import BUILTIN_CATALOGUE, Provenance, Quality

PUBLISHED = {Provenance.EXACT, Provenance.LISTED, Provenance.MEASURED}
RAW_CPUS = [
    # Retail parts, by /proc/cpuinfo.
    ("AMD EPYC 9965 192-Core Processor", 192, 500.0),
    ("AMD EPYC 9755 128-Core Processor", 128, 500.0),
    ("AMD EPYC 9575F 64-Core Processor", 64, 400.0),
    ("AMD EPYC 9754 128-Core Processor", 128, 360.0),
    ("AMD EPYC 9654 96-Core Processor", 96, 360.0),
    ("AMD EPYC 9654P 96-Core Processor", 96, 360.0),
    ("AMD EPYC 9684X 96-Core Processor", 96, 400.0),
    ("AMD EPYC 9554 64-Core Processor", 64, 360.0),
    ("AMD EPYC 9554P 64-Core Processor", 64, 360.0),
    ("AMD EPYC 9454P 48-Core Processor", 48, 290.0),
    ("AMD EPYC 9354 32-Core Processor", 32, 280.0),
    ("AMD EPYC 8534P 64-Core Processor", 64, 200.0),
    ("AMD EPYC 7763 64-Core Processor", 64, 280.0),
    ("AMD EPYC 7713P 64-Core Processor", 64, 225.0),
    ("AMD EPYC 7543 32-Core Processor", 32, 225.0),
    ("AMD EPYC 75F3 32-Core Processor", 32, 280.0),
    ("AMD EPYC 7742 64-Core Processor", 64, 225.0),
    ("AMD EPYC 7702 64-Core Processor", 64, 200.0),
    ("AMD EPYC 7H12 64-Core Processor", 64, 280.0),
    ("AMD EPYC 7551P 32-Core Processor", 32, 180.0),
    ("Intel(R) Xeon(R) 6980P", 128, 500.0),
    ("Intel(R) Xeon(R) 6780E", 144, 330.0),
    ("INTEL(R) XEON(R) PLATINUM 8592+", 64, 350.0),
    ("INTEL(R) XEON(R) PLATINUM 8568Y+", 48, 350.0),
    ("INTEL(R) XEON(R) GOLD 6530", 32, 270.0),
    ("Intel(R) Xeon(R) Platinum 8480+", 56, 350.0),
    ("Intel(R) Xeon(R) Platinum 8468", 48, 350.0),
    ("Intel(R) Xeon(R) CPU Max 9480", 56, 350.0),
    ("Intel(R) Xeon(R) Platinum 8380 CPU @ 2.30GHz", 40, 270.0),
    ("Intel(R) Xeon(R) Platinum 8358 CPU @ 2.60GHz", 32, 250.0),
    ("Intel(R) Xeon(R) Gold 6338 CPU @ 2.00GHz", 32, 205.0),
    ("Intel(R) Xeon(R) Platinum 8280 CPU @ 2.70GHz", 28, 205.0),
    ("Intel(R) Xeon(R) Platinum 8268 CPU @ 2.90GHz", 24, 205.0),
    ("Intel(R) Xeon(R) Gold 6248 CPU @ 2.50GHz", 20, 150.0),
    ("Intel(R) Xeon(R) Gold 5218 CPU @ 2.30GHz", 16, 125.0),
    ("Intel(R) Xeon(R) Silver 4214 CPU @ 2.20GHz", 12, 85.0),
    ("Intel(R) Xeon(R) Gold 6148 CPU @ 2.40GHz", 20, 150.0),
    ("Intel(R) Xeon(R) Platinum 8180 CPU @ 2.50GHz", 28, 205.0),
    ("Ampere Altra Q80-30", 80, 210.0),
    ("Ampere Altra Max M128-30", 128, 250.0),
    # Parts whose TDP some public table lists, though no vendor does.
    ("AMD EPYC 7B12", 64, 240.0),
    ("Intel(R) Xeon(R) Platinum 8259CL CPU @ 2.50GHz", 24, 210.0),
    ("Intel(R) Xeon(R) Platinum 8272CL CPU @ 2.60GHz", 26, 195.0),
    ("Intel(R) Xeon(R) Platinum 8370C CPU @ 2.80GHz", 32, 270.0),
    ("Intel(R) Xeon(R) Platinum 8171M CPU @ 2.60GHz", 26, 165.0),
    ("Intel(R) Xeon(R) Platinum 8175M CPU @ 2.50GHz", 24, 165.0),
]
CLOUD_CPUS = [
    ("AMD EPYC 7R13 Processor", "AMD EPYC 7643"),
    ("AMD EPYC 7R32", "AMD EPYC 7642"),
    ("AMD EPYC 9R14", "AMD EPYC 9654"),
    ("AMD EPYC 7B13", "AMD EPYC 7763"),
    ("AMD EPYC 9B14", "AMD EPYC 9654"),
    ("AMD EPYC 7V12 64-Core Processor", "AMD EPYC 7742"),
    ("AMD EPYC 7V13 64-Core Processor", "AMD EPYC 7763"),
    ("AMD EPYC 7V73X 64-Core Processor", "AMD EPYC 7773X"),
    ("AMD EPYC 9V33X 96-Core Processor", "AMD EPYC 9684X"),
    ("AMD EPYC 9V74 80-Core Processor", "AMD EPYC 9654"),
    ("Intel(R) Xeon(R) Platinum 8275CL CPU @ 3.00GHz", "Intel Xeon Platinum 8268"),
    ("Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz", "Intel Xeon Platinum 8362"),
    ("Intel(R) Xeon(R) Platinum 8488C", "Intel Xeon Platinum 8468"),
    ("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", "Intel Xeon Platinum 8480+"),
    ("Intel(R) Xeon(R) Platinum 8480C", "Intel Xeon Platinum 8480+"),
]
UNKNOWN_CPUS = [
    # Google's Intel machines, generic virtual CPUs, Graviton (no TDP was ever published), neighbours of known parts.
    "Intel(R) Xeon(R) CPU @ 2.20GHz",
    "Intel Xeon Processor (Skylake, IBRS)",
    "QEMU Virtual CPU version 2.5+",
    "AMD EPYC-Milan Processor",
    "AWS Graviton3",
    "AMD EPYC 9654F 96-Core Processor",
    "AMD EPYC 7763P 64-Core Processor",
    "AMD EPYC 7R14",
    "Intel(R) Xeon(R) Platinum 8480L",
    "Intel(R) Xeon(R) Platinum 8592++",
    "Intel(R) Xeon(R) Gold 6338N CPU @ 2.20GHz",
    "Intel(R) Xeon(R) Gold 6248R CPU @ 3.00GHz",
    "Intel(R) Xeon(R) 6980E",
]
RAW_GPUS = [
    ("Tesla T4", 70.0),
    ("Tesla-T4-SHARED", 70.0),
    ("Tesla P4", 75.0),
    ("Tesla P40", 250.0),
    ("Tesla P100-SXM2-16GB", 300.0),
    ("Tesla P100-PCIE-16GB", 250.0),
    ("Tesla V100-SXM2-16GB", 300.0),
    ("Tesla V100-SXM2-32GB", 300.0),
    ("Tesla V100-PCIE-16GB", 250.0),
    ("Tesla V100S-PCIE-32GB", 250.0),
    ("NVIDIA A10", 150.0),
    ("NVIDIA A10G", 300.0),
    ("NVIDIA A16", 62.0),
    ("NVIDIA A30", 165.0),
    ("NVIDIA A40", 300.0),
    ("NVIDIA A100-SXM4-40GB", 400.0),
    ("NVIDIA-A100-SXM4-80GB", 400.0),
    ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", 400.0),
    ("NVIDIA A100-PCIE-40GB", 250.0),
    ("NVIDIA A100 80GB PCIe", 300.0),
    ("NVIDIA-A100-80GB-PCIe", 300.0),
    ("NVIDIA H100 PCIe", 350.0),
    ("NVIDIA-H100-80GB-HBM3", 700.0),
    ("NVIDIA H100 NVL", 400.0),
    ("NVIDIA H200", 700.0),
    ("NVIDIA H200 NVL", 600.0),
    ("NVIDIA H20", 400.0),
    ("NVIDIA GH200 480GB", 700.0),
    ("NVIDIA B200", 1000.0),
    ("NVIDIA GB200", 1200.0),
    ("NVIDIA L4", 72.0),
    ("NVIDIA L40", 300.0),
    ("NVIDIA L40S", 350.0),
    ("NVIDIA RTX A6000", 300.0),
    ("NVIDIA RTX 6000 Ada Generation", 300.0),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 600.0),
    ("NVIDIA GeForce RTX 4090", 450.0),
    ("AMD Instinct MI50", 300.0),
    ("AMD Instinct MI100", 300.0),
    ("AMD_Instinct_MI210", 300.0),
    ("AMD Instinct MI250X", 500.0),
    ("AMD_Instinct_MI300X_OAM", 750.0),
    ("AMD Instinct MI325X", 1000.0),
    ("AMD Instinct MI355X", 1400.0),
]
UNKNOWN_GPUS = [
    "NVIDIA L40G",
    "NVIDIA H100 SXM6",
    "NVIDIA A100",
    "NVIDIA A100-SXM4-60GB",
    "NVIDIA H200 PCIe",
    "Tesla T40",
]


@pytest.mark.parametrize(("raw", "cores", "tdp_w"), RAW_CPUS)
def test_h13_cpus_that_clouds_and_vendors_ship_are_known_by_what_they_print(raw, cores, tdp_w):
    for name in (raw, label_form(raw)):
        match = BUILTIN_CATALOGUE.cpu(name)
        assert match.model is not None, name
        assert (match.quality, match.model.cores_per_socket, match.model.tdp_w) == (Quality.EXACT, cores, tdp_w)


@pytest.mark.parametrize(("raw", "related"), CLOUD_CPUS)
def test_h13_clouds_own_parts_are_heuristic_and_name_the_part_that_stands_in(raw, related):
    match = BUILTIN_CATALOGUE.cpu(raw)
    assert match.quality is Quality.HEURISTIC
    assert match.model.tdp_w == BUILTIN_CATALOGUE.cpu(related).model.tdp_w
    assert related in match.model.evidence["tdp_w"].source
    assert (match.model.base_hz, match.model.boost_hz) == (None, None)


@pytest.mark.parametrize("raw", UNKNOWN_CPUS)
def test_trap_no_cpu_takes_its_neighbours_figures(raw):
    assert BUILTIN_CATALOGUE.cpu(raw).quality is Quality.UNAVAILABLE


@pytest.mark.parametrize(("raw", "limit_w"), RAW_GPUS)
def test_h13_gpus_that_clouds_and_vendors_ship_are_known_by_what_they_print(raw, limit_w):
    for name in (raw, raw.replace(" ", "-")):
        match = BUILTIN_CATALOGUE.gpu(name)
        assert match.model is not None, name
        assert (match.quality, match.model.default_w) == (Quality.EXACT, limit_w)


@pytest.mark.parametrize("raw", UNKNOWN_GPUS)
def test_trap_no_gpu_takes_its_neighbours_figures(raw):
    assert BUILTIN_CATALOGUE.gpu(raw).quality is Quality.UNAVAILABLE


def test_threads_of_a_core_are_those_that_the_part_ships_with():
    names = ("AMD EPYC 7763", "AMD EPYC 9R14", "Ampere Altra Q80-30", "Intel Xeon 6780E")
    assert [BUILTIN_CATALOGUE.cpu(name).model.threads_per_core for name in names] == [2, 1, 1, 1]


def test_limits_are_published_for_at_least_60_cpus_and_40_gpus_each_with_its_source():
    cpus = [model for model in BUILTIN_CATALOGUE.cpus if model.evidence["tdp_w"].provenance in PUBLISHED]
    gpus = [model for model in BUILTIN_CATALOGUE.gpus if model.evidence["default_w"].provenance in PUBLISHED]
    assert len(cpus) >= 60
    assert len(gpus) >= 40
    for evidence in {model.evidence["tdp_w"] for model in cpus} | {model.evidence["default_w"] for model in gpus}:
        is_measurement = evidence.provenance is Provenance.MEASURED
        assert is_measurement or re.search(r"https?://\S+\.\S+", evidence.source), evidence


@pytest.mark.slow
def test_the_catalogue_costs_the_agent_little_memory():
    code = (
        "import tracemalloc; tracemalloc.start(); import joulie.domain.hardware;"
        "found = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, '*domain/hardware*')]);"
        "print(sum(one.size for one in found.statistics('filename')))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(ended.stdout) < 500_000
