"""The programs: configuration, wire formats, composition."""
