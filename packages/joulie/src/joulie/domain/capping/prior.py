"""How training jobs respond to power limits, where the job itself has not been measured yet.

What `response.learn` makes of all 218 jobs of the four sweeps of the Zeus project (A40, P100, V100, RTX 6000; ``joulie
bench fetch gpu_power``), so the spread is that between jobs and between GPUs. Newer GPUs have not been swept: for them
it is a guess, which a job's own measurements replace.
"""

from __future__ import annotations

import numpy as np

from joulie.domain.capping.response import RATIOS, Curve, Response

_LOG_RATIO = np.log(RATIOS)
# fmt: off
_SLOWDOWN = np.array([
    1.2597, 1.0829, 0.8955, 0.7819, 0.6775, 0.5532, 0.4675, 0.3773, 0.2724, 0.1978, 0.1445, 0.0999,
    0.0679, 0.0464, 0.0295, 0.0178, 0.0113, 0.0071, 0.0031, 0.0007, -0.0027, -0.0051, -0.0039, -0.0031,
])
_SLOWDOWN_SPREAD = np.array([
    0.2700, 0.2537, 0.2362, 0.2378, 0.2569, 0.2591, 0.2433, 0.2136, 0.1679, 0.1333, 0.1067, 0.0770,
    0.0547, 0.0508, 0.0508, 0.0508, 0.0508, 0.0508, 0.0508, 0.0508, 0.0508, 0.0526, 0.0526, 0.0525,
])
_ENERGY = np.array([
    0.3410, 0.2000, 0.0558, -0.0191, -0.0671, -0.1221, -0.1539, -0.1837, -0.2195, -0.2307, -0.2232, -0.2052,
    -0.1744, -0.1386, -0.1058, -0.0806, -0.0599, -0.0414, -0.0277, -0.0195, -0.0149, -0.0117, -0.0092, -0.0082,
])
_ENERGY_SPREAD = np.array([
    0.2450, 0.2533, 0.2556, 0.2621, 0.2808, 0.2808, 0.2593, 0.2238, 0.1741, 0.1368, 0.1096, 0.0820,
    0.0626, 0.0549, 0.0524, 0.0522, 0.0522, 0.0522, 0.0522, 0.0522, 0.0522, 0.0522, 0.0532, 0.0535,
])
# fmt: on

POOLED = Response(
    Curve(_LOG_RATIO, _SLOWDOWN, _SLOWDOWN_SPREAD, noise=0.0508, growth=1.0),
    Curve(_LOG_RATIO, _ENERGY, _ENERGY_SPREAD, noise=0.0522, growth=0.0),
)
