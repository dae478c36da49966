"""The reference page of the built-in hardware catalogue, from its data."""

from __future__ import annotations

from collections.abc import Iterator

from joulie.domain.hardware import BUILTIN_CATALOGUE, CpuModel, Evidence, GpuModel, Provenance
from joulie.domain.hardware.idle_readings import IDLE_READINGS

_GHZ = 1e9


def hardware_page(generated: str) -> Iterator[str]:
    """The page, as blocks of Markdown."""
    sources = _Sources()
    cpus, gpus = BUILTIN_CATALOGUE.cpus, BUILTIN_CATALOGUE.gpus
    yield "# Built-in hardware"
    yield generated
    yield (
        f"{len(cpus)} CPUs and {len(gpus)} GPUs. Numbers in brackets are the sources of the figure before them, listed"
        " at the end with their [provenance](../howto/hardware.md#built-in-catalogue). What a device reports about"
        " itself goes before all of it. Power curves, minimum limits and idle power that no source states are assumed;"
        " the catalogue's evidence says so."
    )
    yield "## CPUs"
    yield "Of one socket. Names are compared as a whole, after normalisation; `P` parts have their own rows."
    yield _table(
        ("CPU", "cores", "threads a core", "TDP, W", "configurable, W", "clocks, GHz", "source"),
        (_cpu(model, sources) for model in cpus),
    )
    yield "## GPUs"
    read = sum(model.key in IDLE_READINGS for model in gpus)
    yield (
        "Of one device, as the driver counts devices. Idle is what users read of a device without work: the median, the"
        f" range, and where it was read; {read} models have a reading. The power curve of a busy device begins higher."
        " A model without a reading is simulated with the catalogue's idle power, which is assumed."
    )
    yield _table(
        ("GPU", "default limit, W", "range, W", "source", "idle, W", "read in"),
        (_gpu(model, sources) for model in gpus),
    )
    yield "## Sources"
    yield "\n".join(sources.lines())


class _Sources:
    """Sources by number, in the order in which the tables name them."""

    def __init__(self) -> None:
        self._numbers: dict[Evidence, int] = {}

    def number(self, evidence: Evidence) -> str:
        return f"[{self._numbers.setdefault(evidence, len(self._numbers) + 1)}]"

    def lines(self) -> Iterator[str]:
        for evidence, number in self._numbers.items():
            yield f"{number}. `{evidence.provenance.value}`: {evidence.source}"


def _cpu(model: CpuModel, sources: _Sources) -> tuple[str, ...]:
    is_configurable = model.cap_min_w < model.cap_max_w
    clocks = (model.base_hz, model.boost_hz)
    return (
        model.key,
        str(model.cores_per_socket),
        str(model.threads_per_core),
        f"{model.tdp_w:g}",
        f"{model.cap_min_w:g} to {model.cap_max_w:g}" if is_configurable else "",
        " to ".join(f"{clock_hz / _GHZ:g}" for clock_hz in clocks if clock_hz is not None),
        sources.number(model.evidence["tdp_w"]),
    )


def _gpu(model: GpuModel, sources: _Sources) -> tuple[str, ...]:
    limit_source = sources.number(model.evidence["default_w"])
    found = IDLE_READINGS.get(model.key)
    idle = ("no reading", "")
    if found is not None:
        low_w, high_w = found.readings_w[0], found.readings_w[-1]
        spread = f" ({low_w:g} to {high_w:g})" if low_w < high_w else ""
        idle = (f"{found.median_w:g}{spread}", sources.number(Evidence(Provenance.MEASURED, found.source)))
    return (
        model.key,
        f"{model.default_w:g}",
        f"{model.cap_min_w:g} to {model.cap_max_w:g}",
        limit_source,
        *idle,
    )


def _table(heads: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [heads, ("---",) * len(heads), *sorted(rows, key=lambda row: row[0].lower())]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
