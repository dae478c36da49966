"""Models of machines behind the files that an agent reads and writes: in process, or mounted by FUSE."""
