"""Requests to the API server that outlast its absence, and the times and quantities in them."""

import datetime
import re
import time

from tools.kube_api import UNREACHABLE, ApiError
from tools.kube_api import Api as Once

TRIES = 6  # 0.2 + 0.4 + ... s: about 11 s without an API server, then the caller must cope
MERGE = "application/merge-patch+json"
_SCALE = {"": 1, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SCALE |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def log(*words):
    print(time.strftime("%H:%M:%S"), *words, flush=True)


def now(timespec="seconds"):
    utc = datetime.datetime.now(datetime.UTC)
    return utc.isoformat(timespec=timespec).replace("+00:00", "Z")


def quantity(text):
    """Return a quantity as a number: "500m" is 0.5, "64Mi" is 67108864."""
    number, unit = re.fullmatch(r"([0-9.]+)([a-zA-Z]*)", str(text)).groups()
    return float(number) * _SCALE[unit]


class Api(Once):
    def call(self, method, path, body=None, content_type="application/json"):
        for attempt in range(TRIES):
            try:
                return super().call(method, path, body, content_type=content_type)
            except (*UNREACHABLE, ApiError) as error:
                if isinstance(error, ApiError) and error.code != 429 and error.code < 500:
                    raise
                log("retry", method, path, repr(error))
                time.sleep(min(5, 0.2 * 2**attempt))
        raise ApiError(599, f"{method} {path}: gave up after {TRIES} tries")

    def follow(self, path, on_list, on_event):
        """List and watch for ever; lists again after 410 Gone and any broken stream."""
        while True:
            try:
                listing = self.call("GET", path)
                on_list(listing["items"])
                version = listing["metadata"]["resourceVersion"]
                while True:  # from one stream's regular end on
                    for event in self.watch(path, version, within_s=300):
                        version = event["object"]["metadata"]["resourceVersion"]
                        if event["type"] != "BOOKMARK":
                            on_event(event["type"], event["object"])
            except (*UNREACHABLE, ApiError, ValueError) as error:
                log("watch", path, repr(error))
                time.sleep(0.5)
