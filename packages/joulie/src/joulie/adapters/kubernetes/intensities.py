"""The ConfigMap in which the grid controller publishes the carbon intensity of the nodes' zones.

The extender scores nodes by it: it asks no provider itself, since a provider's rate limit is the installation's.
"""

from __future__ import annotations

import msgspec

from joulie.adapters.kubernetes.api.core import ConfigMap
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.resources import CONFIG_MAPS
from joulie.domain.quantities import InvalidQuantityError, finite_number

CONFIG_MAP = "joulie-grid-intensities"
FIELD_MANAGER = "joulie-grid"
_KEY = "intensities.json"


class Intensities(msgspec.Struct, frozen=True):
    """Carbon intensity of the nodes' zones.

    Attributes:
        time_s: when it was published, s since the epoch.
        default_zone: zone of nodes that state none.
        regions: zone by cloud region, besides the built-in table.
        g_per_kwh: carbon intensity by zone, gCO2eq/kWh; zones without a known one are left out.
    """

    time_s: float
    default_zone: str
    regions: dict[str, str]
    g_per_kwh: dict[str, float]


async def publish(client: KubeClient, namespace: str, intensities: Intensities) -> None:
    """Write the ConfigMap.

    Raises:
        KubernetesError: the write failed.
    """
    data = {_KEY: msgspec.json.encode(intensities).decode()}
    await client.patch(CONFIG_MAPS, CONFIG_MAP, {"data": data}, namespace=namespace, field_manager=FIELD_MANAGER)


def read_intensities(found: ConfigMap) -> Intensities | None:
    """The published intensities; None before the first ones.

    Raises:
        InvalidQuantityError: the content is invalid.
    """
    text = found.data.get(_KEY)
    if text is None:
        return None
    try:
        read = msgspec.json.decode(text, type=Intensities)
    except msgspec.DecodeError as error:
        raise InvalidQuantityError(f"ConfigMap {CONFIG_MAP}", str(error)) from error
    for zone, value in read.g_per_kwh.items():
        finite_number(f"g_per_kwh of {zone}", value, minimum=0.0)
    return read
