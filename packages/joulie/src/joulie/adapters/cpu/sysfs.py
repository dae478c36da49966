"""Text and number attributes of sysfs, and writes that are verified by reading the value back."""

from __future__ import annotations

import os
from pathlib import Path

from joulie.ports import ControlFailedError, control_error


def read_text(file: Path) -> str | None:
    """Content of a file without surrounding whitespace; None if it cannot be read."""
    try:
        return file.read_text().strip()
    except (OSError, ValueError):
        return None


def read_number(file: Path) -> int:
    """Content of a file as a non-negative integer.

    Raises:
        OSError: the file cannot be read.
        ValueError: the content is not a non-negative integer.
    """
    text = file.read_text().strip()
    if not text.isdecimal():
        raise ValueError(f"{file} holds {text[:40]!r}, not a number")
    return int(text)


def write_number(file: Path, number: int, action: str) -> int:
    """Write a number and return the value that is in force afterwards, which the driver may have changed.

    Args:
        file: attribute to write.
        number: value to write.
        action: description of the write for error messages: ``write 150 W to /sys/...``.

    Raises:
        ControlRefusedError: the kernel does not permit or support the write.
        ControlFailedError: the write failed, or the value read back is not a number.
    """
    try:
        _write(file, str(number))
        return read_number(file)
    except OSError as error:
        raise control_error(action, error) from error
    except ValueError as error:
        raise ControlFailedError(f"{action}: {error}") from error


def _write(file: Path, text: str) -> None:
    """Write in a single call, as sysfs requires; unlike `Path.write_text` this never creates a file."""
    descriptor = os.open(file, os.O_WRONLY | os.O_TRUNC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
