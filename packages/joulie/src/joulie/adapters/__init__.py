"""One technology a module, each implementing a port."""
