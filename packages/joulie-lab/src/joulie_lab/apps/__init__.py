"""Commands of the laboratory; they join the `joulie` command by an entry point."""
