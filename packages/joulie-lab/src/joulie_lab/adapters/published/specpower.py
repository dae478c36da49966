"""Reads and cleans published SPECpower_ssj2008 results, and adds the TDP of the CPU models.

The table is ``data/SPECpower-2026-03-09.csv`` of github.com/cloud-carbon-footprint/ccf-coefficients (Apache-2.0), with
one row per result: power of the whole system at the plug, at full load and at active idle. It is not part of Joulie and
must be fetched to run the benchmark. Rows that do not describe a single server are excluded and counted by reason.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from joulie_lab.adapters.published.errors import PublishedDataError

HOME = "github.com/cloud-carbon-footprint/ccf-coefficients, data/SPECpower-2026-03-09.csv"
SINCE_YEAR = 2015
"""First year of publication; older servers differ too much from today's clusters."""
MIN_SERVERS, MIN_VENDORS = 100, 5
"""Minimum numbers of servers and vendors for calibration with held-out groups."""
MOST_CHIPS = 8
LEAST_GIB_PER_CORE = 0.1
"""Figures in the column of gigabytes below this are terabytes: real servers have at least five times as much."""


@dataclass(frozen=True)
class System:
    """One server.

    Attributes:
        vendor: vendor; brands of one vendor have one name.
        year: year of publication.
        cpu: CPU model, without vendor and trademarks.
        chips: number of CPU packages.
        cores: number of physical cores of all packages.
        threads: number of logical cores of all packages.
        memory_gib: size of the memory, GiB.
        idle_w: power of the whole server at active idle, W.
        full_w: power of the whole server at full load, W.
        result: the benchmark's overall result, operations per second and watt.
    """

    vendor: str
    year: int
    cpu: str
    chips: int
    cores: int
    threads: int
    memory_gib: float
    idle_w: float
    full_w: float
    result: float

    @property
    def tdp_w(self) -> float | None:
        """TDP of all packages, W; None if `TDP_W` does not have the model."""
        tdp_w = TDP_W.get(self.cpu)
        return None if tdp_w is None else self.chips * tdp_w


@dataclass(frozen=True)
class Systems:
    """The servers of a table.

    Attributes:
        rows: number of rows of the table.
        kept: the usable servers.
        left_out: number of excluded rows by reason.
        corrected: number of rows with a corrected figure, by reason.
    """

    rows: int
    kept: tuple[System, ...]
    left_out: Mapping[str, int]
    corrected: Mapping[str, int]


def read_systems(lines: Iterable[str]) -> Systems:
    """Read the servers of a table of results.

    Args:
        lines: lines of the CSV file, header first.

    Raises:
        PublishedDataError: a column is missing.
    """
    table = csv.DictReader(lines)
    missing = [column for column in _COLUMNS if column not in (table.fieldnames or ())]
    if missing:
        raise PublishedDataError(f"no column {missing[0]!r}: not a copy of {HOME}")
    kept: dict[tuple[object, ...], System] = {}
    left_out, corrected = Counter[str](), Counter[str]()
    rows = 0
    for row in table:
        rows += 1
        system, problem = _system(row)
        if system is None:
            left_out[problem] += 1
            continue
        if system.memory_gib < LEAST_GIB_PER_CORE * system.cores:
            system = replace(system, memory_gib=1024.0 * system.memory_gib)
            corrected["memory in terabytes"] += 1
        # Equal figures under another date or name are the same measurement.
        figures = (system.cpu, system.chips, system.idle_w, system.full_w, system.result)
        if figures in kept:
            left_out["published twice"] += 1
        kept.setdefault(figures, system)
    return Systems(rows, tuple(kept.values()), dict(sorted(left_out.items())), dict(sorted(corrected.items())))


def enough(systems: Systems) -> Systems:
    """Check that there are enough servers for calibration with held-out groups; returns them.

    Raises:
        PublishedDataError: too few servers or vendors.
    """
    servers, vendors = len(systems.kept), len({system.vendor for system in systems.kept})
    if servers < MIN_SERVERS or vendors < MIN_VENDORS:
        raise PublishedDataError(
            f"has {servers} usable servers of {vendors} vendors; at least {MIN_SERVERS} of {MIN_VENDORS} are needed"
        )
    return systems


def _system(row: Mapping[str, str]) -> tuple[System | None, str]:
    """The server of a row, or None and the reason for its exclusion."""
    try:
        year = int(row["Published"][-4:])
        chips, per_chip, cores, threads = (
            int(float(row[name])) for name in ("Chips", "# Cores Per Chip", "# Cores", "Total Threads")
        )
        memory_gib, idle_w, full_w, result = (
            float(row[name])
            for name in ("Total Memory (GB)", "avg. watts @ active idle", "avg. watts @ 100%", "Result")
        )
    except (TypeError, ValueError):
        return None, "unreadable"
    figures = (chips, cores, threads, memory_gib, idle_w, full_w, result)
    if not (np.isfinite(figures).all() and min(figures) > 0.0 and idle_w < full_w):
        return None, "impossible power or size"
    if year < SINCE_YEAR:
        return None, f"published before {SINCE_YEAR}"
    if chips > MOST_CHIPS or row["Power Supply Details"].strip() in {"", "Shared"}:
        return None, "several nodes in one enclosure"
    if cores != chips * per_chip:
        return None, "cores are not chips x cores per chip"
    cpu, vendor = _cpu(row["CPU Description"]), _vendor(row["Hardware Vendor"])
    return System(vendor, year, cpu, chips, cores, threads, memory_gib, idle_w, full_w, result), ""


def synthetic_table(seed: int) -> list[str]:
    """Synthetic lines in the format of the published table, for runs without the published one.

    Only the format is real: power is derived from the TDP, with random differences between vendors and servers. It
    shows that the benchmark works, not how real servers behave.
    """
    draw = np.random.default_rng(seed)
    lines = [",".join(f'"{column}"' for column in _COLUMNS)]
    for vendor in range(8):
        of_vendor = draw.normal(0.0, 0.08)
        for year in range(2014, 2025):
            for cpu in ("EPYC 9654", "EPYC 7742", "Xeon Platinum 8280", "Xeon Gold 5218"):
                chips, per_chip = int(draw.integers(1, 3)), 32
                full_w = 1.05 * chips * TDP_W[_cpu(cpu)] * np.exp(of_vendor + draw.normal(0.0, 0.12))
                idle_w = full_w * np.exp(draw.normal(-1.6, 0.25))
                cores = chips * per_chip
                row = {
                    "Hardware Vendor": f"Vendor {vendor}",
                    "CPU Description": cpu,
                    "Chips": chips,
                    "# Cores": cores,
                    "# Cores Per Chip": per_chip,
                    "Total Threads": 2 * cores,
                    "Total Memory (GB)": 4 * cores,
                    "Power Supply Details": "Shared" if draw.random() < 0.05 else "one of its own",
                    "Published": f"Jan-{year}",
                    "Result": f"{10_000 * draw.random():.0f}",
                    "avg. watts @ 100%": f"{full_w:.0f}",
                    "avg. watts @ active idle": f"{idle_w:.1f}",
                }
                lines.append(",".join(str(row[column]) for column in _COLUMNS))
    return lines


_COLUMNS = (
    "Hardware Vendor",
    "CPU Description",
    "Chips",
    "# Cores",
    "# Cores Per Chip",
    "Total Threads",
    "Total Memory (GB)",
    "Power Supply Details",
    "Published",
    "Result",
    "avg. watts @ 100%",
    "avg. watts @ active idle",
)
_DECORATION = re.compile(r"\((?:r|tm)\)|[®,]|\b\d+-core\b|\b(?:intel|amd|xeon|processor|cpu)\b")
_HOUSES = {
    "super micro": "Supermicro",
    "supermicro": "Supermicro",
    "hewlett": "HPE",
    "lenovo": "Lenovo",
    "ibm": "Lenovo",
    "fujitsu": "Fujitsu",
    "fsas": "Fujitsu",
    "huawei": "Huawei",
    "xfusion": "Huawei",
    "inspur": "Inspur",
    "ieit": "Inspur",
    "kaytus": "Inspur",
    "h3c": "H3C",
    "quanta": "Quanta",
    "giga-byte": "Gigabyte",
    "asustek": "ASUS",
    "dell": "Dell",
}
"""Vendor by name in the table: spellings, successors and brands."""


def _cpu(text: str) -> str:
    """The distinguishing part of a CPU's name: ``platinum 8592+``."""
    return " ".join(_DECORATION.sub(" ", text.lower()).split())


def _vendor(text: str) -> str:
    lower = text.lower()
    return next((house for name, house in _HOUSES.items() if name in lower), text.strip())


def _tdp(table: Mapping[int, str]) -> Mapping[str, float]:
    return MappingProxyType({name.strip(): float(watts) for watts, names in table.items() for name in names.split(",")})


TDP_W = _tdp(
    {
        25: "e3-1240l v5",
        28: "core ultra 7 255h",
        45: "e3-1260l v5, e3-1275lv3",
        65: "epyc 4344p, epyc 4465p",
        72: "e3-1230 v6",
        80: "e-2176g, e-2356g, epyc 8024pn",
        85: "silver 4210, silver 4214",
        90: "epyc 8024p",
        95: "6369p, e e-2488, e-2288g, e-2388g, e-2488",
        100: "d-2775te, epyc 8124pn",
        105: "gold 5117",
        120: "epyc 4584px, epyc 8224pn",
        125: "epyc 8124p, gold 5218, gold 5220",
        130: "epyc 8324pn",
        135: "e5-2698 v4, e5-4669 v3, e5-4669 v4",
        140: "gold 6140, gold 6152",
        145: "e5-2699 v3, e5-2699 v4",
        150: "gold 6136, gold 6226r, gold 6252, platinum 8160, silver 4510",
        155: "epyc 8434pn",
        160: "epyc 8224p",
        165: "gold 6238r, platinum 8176, platinum 8176m, platinum 8276l, platinum 8276m",
        175: "epyc 8534pn",
        180: "epyc 7551p, epyc 7601, epyc 8324p",
        185: "gold 6336y, gold 6338n, gold 6421n",
        200: "epyc 7702, epyc 7702p, epyc 8434p, epyc 8534p",
        205: (
            "gold 5520+, gold 6314u, gold 6433n, gold 6438n, gold 6438y+, platinum 8180, platinum 8280, "
            "platinum 8280l, platinum 8352y, platinum 8376hl"
        ),
        225: "epyc 7713, epyc 7742, gold 6448y, gold 6538y+",
        250: "6766e, gold 6414u, gold 6548y, platinum 8360y, platinum 8380h, platinum 8380hl",
        270: "gold 6454s, platinum 8368q, platinum 8380, platinum 8581v",
        280: "epyc 7763, epyc 7773x",
        300: "platinum 8471n, platinum 8562y+",
        330: "6780e, gold 6780e",
        350: "6787p, 6788p, 8480+, 8592+, gold 6558q, platinum 8480+, platinum 8490h, platinum 8592+",
        360: "epyc 9654, epyc 9654p, epyc 9754",
        390: "epyc 9845",
        400: "epyc 9655",
        500: "6980p, epyc 9755, epyc 9965",
    }
)
"""TDP of one socket, W, from the vendors' product specifications; models are spelled as in the table."""


class PublishedCurve(NamedTuple):
    """Power of one system of the table at 0, 10, ... 100 % load, W."""

    name: str
    cpu: str
    chips: int
    curve_w: tuple[float, ...]


PUBLISHED_CURVES = (
    PublishedCurve("PowerEdge R640", "platinum 8180", 2, (55, 125, 151, 176, 202, 232, 261, 301, 357, 421, 469)),
    PublishedCurve("PowerEdge R740", "platinum 8180", 2, (52.3, 129, 147, 170, 195, 224, 255, 292, 344, 408, 457)),
    PublishedCurve("PowerEdge R940", "platinum 8180", 4, (106, 245, 292, 336, 383, 437, 502, 583, 694, 820, 915)),
    PublishedCurve("2288H V5", "platinum 8176", 2, (49.6, 120, 142, 162, 182, 201, 233, 277, 313, 381, 461)),
    PublishedCurve("5288 V5", "platinum 8280", 2, (51.5, 119, 142, 165, 188, 194, 236, 256, 283, 336, 422)),
    PublishedCurve("PowerEdge R830", "e5-4669 v4", 4, (86.4, 181, 215, 253, 287, 315, 340, 377, 421, 483, 562)),
    PublishedCurve("PowerEdge XR8620T", "gold 6433n", 1, (230, 244, 260, 273, 301, 340, 372, 385, 400, 416, 420)),
)
"""The table has no loads between idle and full. These are the systems whose complete published result was available;
their end points equal those of the table."""
