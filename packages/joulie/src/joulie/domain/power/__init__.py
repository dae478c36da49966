"""Power and throughput of CPUs and GPUs, for one device and for arrays of them."""
