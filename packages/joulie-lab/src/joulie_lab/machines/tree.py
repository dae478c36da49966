"""The files of a machine as a kernel lays them out, and what it answers to reads and writes.

Sources, of Linux: drivers/powercap/{powercap_sys,intel_rapl_common}.c, drivers/cpufreq/cpufreq.c,
drivers/platform/x86/amd/hsmp/hsmp.c, drivers/gpu/drm/amd/pm/{amdgpu_pm.c,swsmu/amdgpu_smu.c}. Consequences:

- powercap: text is refused with EINVAL, a limit that the driver refuses (locked) with ENODATA; limits
  are rounded to power units and not compared with the maximum; counters are readable by root only.
- cpufreq: limits are clamped to the hardware's range, then rounded down where the driver has a table; files of policies
  without an online CPU answer EBUSY.
- HSMP: an unknown message is ENOMSG, an unknown socket ENODEV, a wrong number of arguments EINVAL, a command on a
  descriptor for reading, or a query on one for writing, EPERM; the firmware clips limits.
- amdgpu: limits are whole watts, 0 means the present one, those out of range are EINVAL.
"""

from __future__ import annotations

import errno
import json
import struct
from collections.abc import Mapping
from functools import lru_cache, partial
from itertools import pairwise

from joulie_lab.machines.file_tree import READ_WRITE, ROOT_ONLY, File, Link, Read, Tree, failure
from joulie_lab.machines.machine import GpuState, Limits, Machine, Package, in_power_units
from joulie_lab.machines.specs import Cpu, Gpu, Load, Spec, amd_unique_id

_MESSAGE = struct.Struct("=IHH8IH2x")
_SET_LIMIT, _GET_LIMIT, _GET_LIMIT_MAX = 5, 6, 7
_MESSAGES = {_SET_LIMIT: (1, 0), _GET_LIMIT: (0, 1), _GET_LIMIT_MAX: (0, 1)}
"""Number of arguments and of response words."""

_GOVERNORS = {"intel_pstate": "performance powersave", "amd-pstate-epp": "performance powersave"}
EPOCH_S = 1_700_000_000
"""Wall clock at the machine's time 0, s since the epoch."""

_MAX_U64 = 2**64 - 1


@lru_cache(maxsize=256)
def tree_of(spec: Spec) -> Tree:
    """The files of a machine; they hold no state, so that all machines of a kind share them."""
    tree = Tree()
    for folder in ("sys/class/powercap", "sys/devices/system/cpu/cpufreq", "sys/class/hwmon", "dev"):
        tree.folder(folder)
    tree.add("proc/sys/kernel/random/boot_id", File(lambda machine: f"{machine.boot_id}\n"))
    if spec.cpu.vendor:
        tree.add("proc/sys/kernel/bootloader_type", File(lambda machine: f"{machine.loader}\n"))
    tree.add("proc/stat", File(lambda machine: f"cpu  0 0 0 0 0 0 0 0 0 0\nbtime {EPOCH_S + machine.booted_s:.0f}\n"))
    cpuinfo = _cpuinfo(spec)
    tree.add("proc/cpuinfo", File(lambda _machine: cpuinfo))
    _add_topology(tree, spec)
    if spec.rapl is not None:
        _add_powercap(tree, spec)
    if spec.cpufreq is not None:
        _add_cpufreq(tree, spec)
    if spec.hsmp is not None:
        tree.add("dev/hsmp", File(_unreadable, mode=READ_WRITE, ioctl=_hsmp))
    for number, gpu in enumerate(spec.gpu_kinds):
        if gpu.vendor == "amd":
            _add_amdgpu(tree, number, gpu)
    _add_control(tree)
    return tree


def _add_control(tree: Tree) -> None:
    """Files that no kernel has: for whoever runs the machine, to be kept from the agent under test."""
    tree.add("control/state", File(_state))
    tree.add(
        "control/offline",
        File(lambda machine: " ".join(map(str, sorted(machine.offline))) + "\n", _set_offline, READ_WRITE),
    )
    tree.add("control/load", File(lambda machine: f"{machine.load.text()}\n", _set_load, READ_WRITE))
    tree.add(
        "control/boot", File(lambda machine: f"{machine.boots}\n", lambda machine, _text: machine.boot(), READ_WRITE)
    )


def _state(machine: Machine) -> str:
    packages = [
        {
            "power_w": package.power_w,
            "energy_j": package.energy_j,
            "limits_w": {name: limits.power_w[0] for name, limits in package.limits.items()},
            "hsmp_w": package.hsmp_w,
            "max_hz": package.policy_max_hz,
        }
        for package in machine.packages
    ]
    state = {"now_s": machine.now_s, "packages": packages, "gpus": [vars(gpu) for gpu in machine.gpus]}
    return f"{json.dumps(state)}\n"


def _set_offline(machine: Machine, text: str) -> None:
    """Numbers of the policies whose CPUs are all offline."""
    machine.offline = {_unsigned(number) for number in text.split()}


def _set_load(machine: Machine, text: str) -> None:
    try:
        machine.load = Load.parse(text.strip())
    except ValueError as error:
        raise failure(errno.EINVAL) from error


def _constant(value: object) -> Read:
    text = f"{value}\n"
    return lambda _machine: text


def _add_files(tree: Tree, folder: str, values: Mapping[str, object]) -> None:
    for name, value in values.items():
        tree.add(f"{folder}/{name}", File(_constant(value)))


def _unsigned(text: str) -> int:
    """A number as the kernel's kstrtoull reads it."""
    stripped = text.removesuffix("\n").removeprefix("+")
    if not (stripped.isascii() and stripped.isdecimal()) or int(stripped) > _MAX_U64:
        raise failure(errno.EINVAL)
    return int(stripped)


def _unreadable(_machine: Machine) -> str:
    raise failure(errno.EINVAL)


def _cpuinfo(spec: Spec) -> str:
    """/proc/cpuinfo; Arm kernels print no model name."""
    cpu: Cpu = spec.cpu
    threads = range(spec.packages * spec.threads_per_package)
    if not cpu.vendor:
        fields = "BogoMIPS\t: 2000.00\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd4f\n"
    else:
        fields = f"vendor_id\t: {cpu.vendor}\nmodel name\t: {cpu.model}\ncpu MHz\t\t: {cpu.max_hz / 1e6:.3f}\n"
    return "".join(f"processor\t: {thread}\n{fields}\n" for thread in threads)


def _add_topology(tree: Tree, spec: Spec) -> None:
    """Which CPUs are online, and the topology of each; the kernel has none of those offline."""
    tree.add("sys/devices/system/cpu/online", File(_online))
    per_package = spec.threads_per_package
    for cpu in range(spec.packages * per_package):
        package, thread = divmod(cpu, per_package)
        socket, die = divmod(package, spec.dies)
        values = {
            "physical_package_id": socket,
            "die_id": die,
            "core_id": thread // spec.cpu.threads_per_core,
        }
        for name, value in values.items():
            file = _of_online_cpu(File(_constant(value)), cpu)
            tree.add(f"sys/devices/system/cpu/cpu{cpu}/topology/{name}", file)


def _online(machine: Machine) -> str:
    """A list of CPUs as the kernel prints it: ``0-3,8``."""
    spec = machine.spec
    cpus = [cpu for cpu in range(spec.packages * spec.threads_per_package) if not _offline(machine, cpu)]
    breaks = [number for number in range(1, len(cpus)) if cpus[number] > cpus[number - 1] + 1]
    runs = [cpus[start:end] for start, end in pairwise([0, *breaks, len(cpus)]) if start < end]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs) + "\n"


def _offline(machine: Machine, cpu: int) -> bool:
    """Whether a CPU is one of a policy that is offline."""
    step = machine.spec.cpufreq.cpus_per_policy if machine.spec.cpufreq else 1
    return cpu // step * step in machine.offline


def _of_online_cpu(file: File, cpu: int) -> File:
    def read(machine: Machine) -> str:
        if _offline(machine, cpu):
            raise failure(errno.ENOENT)
        return file.read(machine)

    return File(read)


def _add_powercap(tree: Tree, spec: Spec) -> None:
    rapl = spec.rapl
    if rapl is None:
        return
    for control_type in ("intel-rapl", *(["intel-rapl-mmio"] if rapl.mmio else [])):
        root = f"sys/devices/virtual/powercap/{control_type}"
        _add_files(tree, root, {"enabled": 1})
        tree.add(f"sys/class/powercap/{control_type}", Link(root))
        for index in range(spec.packages):
            socket, die = divmod(index, spec.dies)
            name = f"package-{socket}" + (f"-die-{die}" if spec.dies > 1 else "")
            zone = _add_zone(tree, root, index, name, "package", index, control_type if rapl.limits else "")
            own = [part for part in ("core", "uncore", "dram") if getattr(rapl, part)]
            for number, part in enumerate(own if control_type == "intel-rapl" else []):
                _add_zone(tree, zone, number, part, part, index, "")
        if rapl.psys and control_type == "intel-rapl":
            _add_zone(tree, root, spec.packages, "psys", "psys", 0, "")


def _add_zone(tree: Tree, above: str, number: int, name: str, kind: str, index: int, control_type: str) -> str:
    """Add a zone below its parent's folder and return its own."""
    folder = f"{above}/{above.rpartition('/')[2]}:{number:x}"
    files: dict[str, File] = {
        "name": File(_constant(name)),
        "energy_uj": File(partial(_zone_energy, kind, index), mode=ROOT_ONLY),
        "max_energy_range_uj": File(partial(_zone_range, kind, index)),
        "enabled": File(partial(_enabled, index, control_type), partial(_enable, index, control_type), READ_WRITE),
    }
    for constraint, constraint_name in enumerate(("long_term", "short_term")):
        prefix, at = f"constraint_{constraint}", (index, control_type, constraint)
        files[f"{prefix}_name"] = File(_constant(constraint_name))
        files[f"{prefix}_power_limit_uw"] = File(partial(_limit, *at), partial(_set_limit, *at), READ_WRITE)
        files[f"{prefix}_time_window_us"] = File(partial(_window, *at), partial(_set_window, *at), READ_WRITE)
        files[f"{prefix}_max_power_uw"] = File(partial(_max_power, *at))
    for file_name, file in files.items():
        if control_type or not file_name.startswith("constraint"):
            tree.add(f"{folder}/{file_name}", file)
    tree.add(f"{folder}/device", Link(above))
    tree.add(f"{folder}/subsystem", Link("sys/class/powercap"))
    tree.add(f"sys/class/powercap/{folder.rpartition('/')[2]}", Link(folder))
    return folder


def _zone_energy(kind: str, index: int, machine: Machine) -> str:
    energy_j, unit_j = machine.zone_j(kind, machine.packages[index])
    return f"{machine.counter_uj(energy_j, unit_j)}\n"


def _zone_range(kind: str, index: int, machine: Machine) -> str:
    _, unit_j = machine.zone_j(kind, machine.packages[index])
    return f"{machine.counter_uj((2**32 - 1) * unit_j, unit_j)}\n"


def _registers(machine: Machine, index: int, control_type: str) -> Limits:
    limits = machine.packages[index].limits.get(control_type)
    if limits is None:
        raise failure(errno.ENODATA)
    return limits


def _locked(machine: Machine) -> bool:
    return machine.spec.rapl is not None and machine.spec.rapl.locked


def _enabled(index: int, control_type: str, machine: Machine) -> str:
    limits = machine.packages[index].limits.get(control_type)
    return f"{int(limits is not None and limits.enabled)}\n"


def _enable(index: int, control_type: str, machine: Machine, text: str) -> None:
    choice = text.strip().lower()[:1]
    if choice not in {"0", "1", "y", "n"}:
        raise failure(errno.EINVAL)
    limits = machine.packages[index].limits.get(control_type)
    if limits is None or _locked(machine):
        raise failure(errno.ENOSYS)
    limits.enabled = choice in {"1", "y"}


def _limit(index: int, control_type: str, constraint: int, machine: Machine) -> str:
    return f"{round(_registers(machine, index, control_type).power_w[constraint] * 1e6)}\n"


def _set_limit(index: int, control_type: str, constraint: int, machine: Machine, text: str) -> None:
    limit_uw = _unsigned(text)
    registers = _registers(machine, index, control_type)
    if _locked(machine):
        raise failure(errno.ENODATA)
    registers.power_w[constraint] = in_power_units(limit_uw / 1e6)


def _window(index: int, control_type: str, constraint: int, machine: Machine) -> str:
    return f"{round(_registers(machine, index, control_type).window_s[constraint] * 1e6)}\n"


def _set_window(index: int, control_type: str, constraint: int, machine: Machine, text: str) -> None:
    window_us = _unsigned(text)
    registers = _registers(machine, index, control_type)
    if _locked(machine) or window_us == 0:
        raise failure(errno.ENODATA)
    registers.window_s[constraint] = window_us / 1e6


def _max_power(_index: int, _control_type: str, constraint: int, machine: Machine) -> str:
    rapl = machine.spec.rapl
    stated = rapl is not None and rapl.max_power and constraint == 0
    return f"{round(machine.spec.package_max_w * 1e6) if stated else 0}\n"


def _add_cpufreq(tree: Tree, spec: Spec) -> None:
    cpufreq = spec.cpufreq
    if cpufreq is None:
        return
    step, per_package = cpufreq.cpus_per_policy, spec.threads_per_package
    for number in range(0, spec.packages * per_package, step):
        index, first = divmod(number, per_package)
        policy = first // step
        folder = f"sys/devices/system/cpu/cpufreq/policy{number}"
        cpus = " ".join(map(str, range(number, number + step)))
        governors = _GOVERNORS.get(cpufreq.driver, "performance schedutil")
        khz = {"min": round(spec.cpu.min_hz / 1e3), "max": round(spec.cpu.max_hz / 1e3)}
        values: dict[str, object] = {
            "affected_cpus": cpus,
            "cpuinfo_max_freq": khz["max"],
            "cpuinfo_min_freq": khz["min"],
            "related_cpus": cpus,
            "scaling_available_governors": governors,
            "scaling_driver": cpufreq.driver,
            "scaling_governor": governors.split()[0],
        }
        if cpufreq.table_hz:
            values["scaling_available_frequencies"] = " ".join(f"{hz / 1e3:.0f}" for hz in reversed(cpufreq.table_hz))
        files = {name: File(_constant(value)) for name, value in values.items()}
        at = (index, policy)
        files["scaling_max_freq"] = File(partial(_max_freq, *at), partial(_set_max_freq, *at), READ_WRITE)
        files["scaling_min_freq"] = File(partial(_min_freq, *at), partial(_set_min_freq, *at), READ_WRITE)
        files["scaling_cur_freq"] = File(partial(_cur_freq, *at))
        for name, file in files.items():
            tree.add(f"{folder}/{name}", _of_active_policy(file, number))
        for cpu in range(number, number + step):
            tree.add(f"sys/devices/system/cpu/cpu{cpu}/cpufreq", Link(folder))


def _of_active_policy(file: File, number: int) -> File:
    def read(machine: Machine) -> str:
        if number in machine.offline:
            raise failure(errno.EBUSY)
        return file.read(machine)

    def write(machine: Machine, text: str) -> None:
        if number in machine.offline:
            raise failure(errno.EBUSY)
        if file.write is not None:
            file.write(machine, text)

    return File(read, write if file.write else None, file.mode)


def _max_freq(index: int, policy: int, machine: Machine) -> str:
    return f"{round(machine.packages[index].policy_max_hz[policy] / 1e3)}\n"


def _min_freq(index: int, policy: int, machine: Machine) -> str:
    package = machine.packages[index]
    return f"{round(min(package.policy_min_hz[policy], package.policy_max_hz[policy]) / 1e3)}\n"


def _cur_freq(index: int, policy: int, machine: Machine) -> str:
    busy = machine.packages[index].power_w > machine.spec.cpu.idle_w / machine.spec.dies
    return _max_freq(index, policy, machine) if busy else f"{round(machine.spec.cpu.min_hz / 1e3)}\n"


def _set_max_freq(index: int, policy: int, machine: Machine, text: str) -> None:
    machine.packages[index].policy_max_hz[policy] = _settable_hz(machine.spec, _unsigned(text) * 1e3)


def _set_min_freq(index: int, policy: int, machine: Machine, text: str) -> None:
    machine.packages[index].policy_min_hz[policy] = _settable_hz(machine.spec, _unsigned(text) * 1e3)


def _settable_hz(spec: Spec, wanted_hz: float) -> float:
    """A frequency in the hardware's range; with a table its highest entry that is not above."""
    clamped_hz = min(max(wanted_hz, spec.cpu.min_hz), spec.cpu.max_hz)
    table_hz = spec.cpufreq.table_hz if spec.cpufreq else ()
    return max((hz for hz in table_hz if hz <= clamped_hz), default=clamped_hz)


def _hsmp(machine: Machine, buffer: bytearray, write: bool) -> None:
    """One message to the firmware; the response is written into the buffer."""
    hsmp = machine.spec.hsmp
    if hsmp is None or len(buffer) < _MESSAGE.size:
        raise failure(errno.EFAULT)
    message, n_arguments, n_words, argument, *_rest, socket = _MESSAGE.unpack_from(buffer)
    if message not in _MESSAGES:
        raise failure(errno.ENOMSG)
    if write is not (message == _SET_LIMIT):
        raise failure(errno.EPERM)
    if (n_arguments, n_words) != _MESSAGES[message]:
        raise failure(errno.EINVAL)
    if socket >= machine.spec.sockets:
        raise failure(errno.ENODEV)
    package: Package = machine.packages[socket * machine.spec.dies]
    if message == _SET_LIMIT:
        package.hsmp_w = min(max(argument / 1e3, hsmp.min_w), hsmp.max_w)
        return
    answer_w = package.hsmp_w if message == _GET_LIMIT else hsmp.max_w
    struct.pack_into("=I", buffer, 8, round((answer_w or 0.0) * 1e3))


def _add_amdgpu(tree: Tree, number: int, gpu: Gpu) -> None:
    device = f"sys/devices/pci0000:{number + 1:02x}/0000:{number + 1:02x}:00.0"
    ids = {"vendor": "0x1002", "device": gpu.pci_device, "unique_id": amd_unique_id(number)}
    _add_files(tree, device, {**ids, "product_name": gpu.model})
    folder = f"{device}/hwmon/hwmon{number}"
    limits = {"power1_cap_min": gpu.min_w, "power1_cap_max": gpu.max_w, "power1_cap_default": gpu.default_w}
    values = {name: round(limit_w * 1e6) for name, limit_w in limits.items()}
    _add_files(tree, folder, {"name": "amdgpu", "power1_label": "PPT", **values})
    tree.add(f"{folder}/power1_input", File(lambda machine: f"{round(machine.gpus[number].power_w * 1e6)}\n"))
    tree.add(
        f"{folder}/power1_cap",
        File(
            lambda machine: f"{round(machine.gpus[number].limit_w * 1e6)}\n",
            partial(_set_gpu_cap, number),
            READ_WRITE,
        ),
    )
    tree.add(f"{folder}/device", Link(device))
    tree.add(f"sys/class/hwmon/hwmon{number}", Link(folder))
    card = f"{device}/drm/card{number}"
    tree.add(f"{card}/device", Link(device))
    tree.add(f"sys/class/drm/card{number}", Link(card))


def _set_gpu_cap(number: int, machine: Machine, text: str) -> None:
    limit_w = _unsigned(text) // 1_000_000
    gpu, state = machine.spec.gpu_kinds[number], machine.gpus[number]
    set_gpu_limit(state, limit_w or state.limit_w, (gpu.min_w, gpu.max_w))


def set_gpu_limit(state: GpuState, limit_w: float, range_w: tuple[float, float]) -> None:
    """Set a GPU's power limit.

    Raises:
        OSError: EINVAL, the limit is out of range.
    """
    if not range_w[0] <= limit_w <= range_w[1]:
        raise failure(errno.EINVAL)
    state.limit_w = float(limit_w)
