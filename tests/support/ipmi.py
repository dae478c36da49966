"""BMCs that speak IPMI: OpenIPMI's simulator as a process of its own, and ipmitool; from Debian, never installed."""

import os
import re
import shutil
from pathlib import Path

from joulie_lab.control_plane import ManagedProcess
from joulie_lab.control_plane.binaries import cache_root
from joulie_lab.control_plane.debian import fetch_packages, keep, run_command
from joulie_lab.control_plane.ports import free_port
from support.fetched_programs import write_program

USER, PASSWORD = "joulie", "not-a-secret"
WHAT_TO_DO = "Install ipmitool and openipmi."
PACKAGES = {
    "ipmitool": re.compile(r"ipmitool$|libfreeipmi\d"),
    "openipmi": re.compile(r"openipmi$|libopenipmi|libpopt0"),
}
CHASSIS = """#!/bin/sh
# ADDRESS get NAME... | set (NAME VALUE)...
power={power}
if [ "$2" = get ]; then
    shift 2
    for name; do [ "$name" = power ] && echo "power:$(cat $power)" || echo "$name:0"; done
    exit
fi
shift 2
while [ $# -gt 1 ]; do
    case "$1" in
    power) echo "$2" > $power ;;
    shutdown) (sleep 0.3; echo 0 > $power) > /dev/null 2>&1 & ;;
    esac
    shift 2
done
"""
CONFIGURATION = """name "m1"
set_working_mc 0x20
  startlan 1
    addr 127.0.0.1 {port}
    priv_limit admin
    allowed_auths_operator none md2 md5 straight
    guid a123456789abcdefa123456789abcdef
  endlan
  chassis_control "{chassis} 0x20"
  user 1 true "" "nobody" user 10 none md2 md5 straight
  user 2 true "{user}" "{password}" operator 10 none md2 md5 straight
"""
MACHINE = "mc_setbmc 0x20\nmc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02 persist_sdr\nmc_enable 0x20\n"


def _fetch(folder, report):
    for package, chosen in PACKAGES.items():
        part = folder / f"{package}-packages"
        part.mkdir()
        root = fetch_packages(
            package, part, report, what_to_do=WHAT_TO_DO, choose=lambda name, chosen=chosen: bool(chosen.match(name))
        )
        shutil.copytree(root, folder / "tree", dirs_exist_ok=True, symlinks=True)
    return folder / "tree"


def _version(tree):
    return run_command([str(tree / "usr/bin/ipmitool"), "-V"], tree, _libraries(tree))


def _libraries(tree):
    folders = [*tree.glob("lib/*-linux-*"), *tree.glob("usr/lib/*-linux-*")]
    return {"LD_LIBRARY_PATH": ":".join(map(str, folders))}


class IpmiEmulator:
    """A BMC at a port of this machine; its operating system takes a moment to shut down."""

    def __init__(self, folder: Path) -> None:
        """Make its files, and fetch programs where they are not there yet; `process` runs it."""
        tree = cache_root(os.environ) / "ipmi" / "tree"
        keep(tree, print, fetch=_fetch, try_out=_version, what_to_do=WHAT_TO_DO)
        self.port = free_port()
        power = folder / "power"
        power.write_text("1\n")
        chassis = write_program(folder / "chassis", CHASSIS.replace("{power}", str(power)))
        configuration = folder / "lan.conf"
        configuration.write_text(CONFIGURATION.format(port=self.port, chassis=chassis, user=USER, password=PASSWORD))
        machine = folder / "machine"
        machine.write_text(MACHINE)
        libraries = _libraries(tree)
        exported = " ".join(f"{name}={value}" for name, value in libraries.items())
        self.programs = write_program(
            folder / "bin" / "ipmitool", f'#!/bin/sh\n{exported} exec {tree}/usr/bin/ipmitool "$@"\n'
        ).parent
        command = [tree / "usr/bin/ipmi_sim", "-n", "-c", configuration, "-f", machine, "-s", folder / "state"]
        self.process = ManagedProcess("ipmi_sim", command, folder / "log", libraries)
