"""Files, links and folders whose content a machine makes when they are read."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass

from joulie_lab.machines.machine import Machine

READ_ONLY, READ_WRITE, ROOT_ONLY = 0o444, 0o644, 0o400

Read = Callable[[Machine], str]
Write = Callable[[Machine, str], None]
Ioctl = Callable[[Machine, bytearray, bool], None]


@dataclass(frozen=True)
class File:
    """A file whose content is made when it is read; without `write` opening it for writing is refused."""

    read: Read
    write: Write | None = None
    mode: int = READ_ONLY
    ioctl: Ioctl | None = None


@dataclass(frozen=True)
class Link:
    """A link to another path of the tree."""

    target: str


@dataclass(frozen=True)
class Folder:
    """A folder; it is filled while the tree is built."""

    names: list[str]


class Tree:
    """Files, links and folders by path, relative to the machine's root: ``sys/class/powercap``."""

    def __init__(self) -> None:
        self.nodes: dict[str, File | Link | Folder] = {"": Folder([])}

    def add(self, path: str, node: File | Link) -> None:
        """Add a file or link, with the folders above it."""
        self.nodes[path] = node
        self._add_name(path)

    def folder(self, path: str) -> None:
        """Add a folder."""
        if path not in self.nodes:
            self.nodes[path] = Folder([])
            self._add_name(path)

    def real(self, path: str) -> str:
        """The path without links; a missing part is kept."""
        if isinstance(self.nodes.get(path), (File, Folder)):
            return path
        resolved = ""
        for part in path.split("/"):
            resolved = f"{resolved}/{part}" if resolved else part
            node = self.nodes.get(resolved)
            if isinstance(node, Link):
                resolved = self.real(node.target)
        return resolved

    def find(self, path: str) -> File | Folder:
        """The file or folder that a path leads to.

        Raises:
            OSError: there is none.
        """
        node = self.nodes.get(self.real(path))
        if node is None or isinstance(node, Link):
            raise failure(errno.ENOENT, path)
        return node

    def _add_name(self, path: str) -> None:
        above, _, name = path.rpartition("/")
        if above:
            self.folder(above)
        folder = self.nodes[above]
        if isinstance(folder, Folder):
            folder.names.append(name)


def failure(number: int, path: str = "") -> OSError:
    """What a system call that fails raises."""
    return OSError(number, os.strerror(number), path or None)
