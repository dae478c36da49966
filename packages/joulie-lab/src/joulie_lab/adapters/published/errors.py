"""What is wrong with published data."""

from __future__ import annotations


class PublishedDataError(ValueError):
    """A file that is not a copy of a published one; the message says what is wrong."""


class FetchError(ValueError):
    """A file that could not be fetched; the message says which and why."""
