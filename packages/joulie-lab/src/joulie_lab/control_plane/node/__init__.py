"""A real node for tests: kubelet, containerd and kube-proxy on this machine, and its images. Needs root."""

from joulie_lab.control_plane.node.host import Addresses
from joulie_lab.control_plane.node.real_node import RealNode

__all__ = ["Addresses", "RealNode"]
