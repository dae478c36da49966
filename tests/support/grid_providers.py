"""Providers of grid data on this machine: what they answer, as their documentation shows it."""

import json

from joulie.adapters.grid.http_json import JsonOptions

NOW_S = 1_700_000_400.0  # 2023-11-14 22:20 UTC

LATEST = {
    "zone": "DE",
    "carbonIntensity": 302,
    "datetime": "2023-11-14T22:00:00.000Z",
    "updatedAt": "2023-11-14T21:53:16.471Z",
    "createdAt": "2023-11-11T22:59:01.123Z",
    "emissionFactorType": "lifecycle",
    "isEstimated": True,
    "estimationMethod": "TIME_SLICER_AVERAGE",
}
FORECAST = {
    "zone": "DE",
    "forecast": [
        {"carbonIntensity": 326, "datetime": "2023-11-14T22:00:00.000Z"},
        {"carbonIntensity": 297, "datetime": "2023-11-14T23:00:00.000Z"},
        {"carbonIntensity": None, "datetime": "2023-11-15T00:00:00.000Z"},
        {"carbonIntensity": 262, "datetime": "2023-11-15T01:00:00.000Z"},
    ],
    "updatedAt": "2023-11-14T22:10:11.000Z",
}
HISTORY = {"zone": "DE", "history": [dict(LATEST, datetime=f"2023-11-14T{hour}:00:00.000Z") for hour in range(10, 22)]}
MOER = {
    "data": [
        {"point_time": "2023-11-14T22:20:00+00:00", "value": 870.0},
        {"point_time": "2023-11-14T22:25:00+00:00", "value": 500.0},
    ],
    "meta": {
        "data_point_period_seconds": 300,
        "region": "CAISO_NORTH",
        "signal_type": "co2_moer",
        "units": "lbs_co2_per_mwh",
        "warnings": [],
    },
}
GB = {
    "data": [
        {
            "from": "2023-11-14T22:00Z",
            "to": "2023-11-14T22:30Z",
            "intensity": {"forecast": 146, "actual": None, "index": "low"},
        }
    ]
}
GB_REGION = {"data": [{"regionid": 13, "shortname": "London", "data": GB["data"]}]}


PRICES = {
    "area": {"id": "DE"},
    "now": {"eur/MWh": "-12.5", "at": 1_699_999_200_000},
    "next": [{"v": 90, "t": "2023-11-14T23:00:00Z"}, {"v": None, "t": "2023-11-15T00:00:00Z"}],
}
POINTERS = JsonOptions(
    value="/now/eur~1MWh",
    time="/now/at",
    zone="/area/id",
    forecast="/next",
    forecast_value="/v",
    forecast_time="/t",
    factor=0.001,
    header="x-key",
)


class Server:
    """Answers by the end of the path; a callable writes the answer itself."""

    def __init__(self, **answers):
        self.answers = answers
        self.requests = []

    async def handle(self, request, answer):
        self.requests.append(request)
        reply = next(
            (reply for end, reply in self.answers.items() if request.path.rstrip("/").endswith(end)),
            (404, {"message": "no such path"}),
        )
        if isinstance(reply, list):
            reply = reply.pop(0) if len(reply) > 1 else reply[0]
        if callable(reply):
            await reply(answer)
            return
        status, body, *headers = reply if isinstance(reply, tuple) else (200, reply)
        await answer.whole(status, body if isinstance(body, bytes) else json.dumps(body).encode(), *headers)
