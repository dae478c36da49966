"""Errors about published data."""

from __future__ import annotations


class PublishedDataError(ValueError):
    """A file is not a copy of the published one; the message says why."""


class FetchError(ValueError):
    """A file could not be fetched; the message says which and why."""
