"""``joulie machine``: lists modelled machines and mounts them as file systems."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from joulie.program.commands import CommandGroup
from joulie.program.errors import UserError
from joulie.program.numbers import FiniteRange


@click.group(cls=CommandGroup, path="machine")
def machine() -> None:
    """List modelled machines, and mount them for an agent to run on."""


@machine.command("list")
@click.option("-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
def list_machines(output: str) -> None:
    """List the machines."""
    from joulie.program.documents import print_document
    from joulie_lab.machines.library import MACHINES, public_sources

    if output != "table":
        rows = [
            {"name": spec.name, "title": spec.title, "sources": list(public_sources(spec))}
            for spec in MACHINES.values()
        ]
        print_document(rows, output)
        return
    width = max(map(len, MACHINES))
    for spec in MACHINES.values():
        click.echo(f"{spec.name:<{width}}  {spec.title}")


@machine.command("mount")
@click.argument("name")
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--load", default="1.0", show_default=True, metavar="LOAD", help="Work wanted: 0.8, or 0:0.2,60:1.0/120.")
@click.option("--speed", default=1.0, show_default=True, type=FiniteRange(min=0.0, min_open=True), help="Time factor.")
def mount_machine(name: str, folder: Path, load: str, speed: float) -> None:
    """Mount a machine's sys, proc and dev at an empty folder, until this command is stopped.

    An agent uses them with HOST_SYS=FOLDER/sys, HOST_PROC=FOLDER/proc and HOST_DEV=FOLDER/dev. The folder control has
    the machine's own state (state), its load (load, which can be written), policies without online CPUs (offline) and
    a reboot (write to boot). Needs
    /dev/fuse, and root or fusermount3.
    """
    from joulie_lab.control_plane.fuse import obtain_libfuse
    from joulie_lab.control_plane.tools import BinariesError
    from joulie_lab.machines.library import MACHINES
    from joulie_lab.machines.machine import Machine
    from joulie_lab.machines.specs import Load

    if name not in MACHINES:
        raise UserError(f"unknown machine {name!r}: see `joulie machine list`")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise UserError("/dev/fuse is missing or not accessible: machines cannot be mounted here")
    try:
        modelled = Machine(MACHINES[name], Load.parse(load))
        os.environ["FUSE_LIBRARY_PATH"] = obtain_libfuse(lambda line: click.echo(line, err=True))
    except ValueError as error:
        raise UserError(f"invalid load {load!r}: {error}") from error
    except BinariesError as error:
        raise UserError(str(error)) from error
    from joulie_lab.machines.fuse_mount import mount

    began_s = time.monotonic()
    mount(
        modelled,
        folder.absolute(),
        lambda: (time.monotonic() - began_s) * speed,
        lambda: click.echo(f"{name} is mounted at {folder}", err=True),
    )
