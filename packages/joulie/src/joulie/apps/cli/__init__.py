"""The ``joulie`` command."""
