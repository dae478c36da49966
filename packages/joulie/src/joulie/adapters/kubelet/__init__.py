"""The kubelet of the machine that a program runs on."""
