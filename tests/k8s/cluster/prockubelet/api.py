"""Requests to the API server: JSON in, JSON out, and watches that never end."""

import http.client
import json
import ssl
import time
import urllib.parse

TRIES = 6  # 0.2 + 0.4 + ... s: about 11 s without an API server, then the caller must cope
MERGE = "application/merge-patch+json"


def log(*words):
    print(time.strftime("%H:%M:%S"), *words, flush=True)


class ApiError(Exception):
    def __init__(self, code, body):
        super().__init__(f"{code} {body[:300]}")
        self.code = code


class Api:
    def __init__(self, server, *, token, ca):
        self.url = urllib.parse.urlparse(server)
        self.token = token
        self.context = ssl.create_default_context(cafile=ca)

    def call(self, method, path, body=None, content_type="application/json"):
        for attempt in range(TRIES):
            try:
                response = self._send(method, path, body, content_type, timeout_s=30)
                text = response.read().decode()
                if response.status == 429 or response.status >= 500:
                    raise OSError(f"{response.status} {text[:200]}")
                if response.status >= 400:
                    raise ApiError(response.status, text)
                return json.loads(text)
            except (OSError, http.client.HTTPException) as error:
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
                while True:
                    version = self._watch(path, version, on_event)
            except (OSError, http.client.HTTPException, ApiError, ValueError) as error:
                log("watch", path, repr(error))
                time.sleep(0.5)

    def _watch(self, path, version, on_event):
        """Follow one stream to its regular end; return the version to go on from."""
        join = "&" if "?" in path else "?"
        query = f"watch=1&allowWatchBookmarks=true&timeoutSeconds=300&resourceVersion={version}"
        response = self._send("GET", f"{path}{join}{query}", timeout_s=330)
        if response.status != 200:
            raise ApiError(response.status, response.read().decode())
        for line in response:
            event = json.loads(line)
            if event["type"] == "ERROR":
                raise ApiError(event["object"].get("code", 500), line.decode())
            version = event["object"]["metadata"]["resourceVersion"]
            if event["type"] != "BOOKMARK":
                on_event(event["type"], event["object"])
        return version

    def _send(self, method, path, body=None, content_type="application/json", *, timeout_s):
        connection = http.client.HTTPSConnection(
            self.url.hostname, self.url.port, context=self.context, timeout=timeout_s
        )
        headers = {
            "Authorization": f"Bearer {self.token}",
            "Content-Type": content_type,
            "Connection": "close",
        }
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, headers)
        return connection.getresponse()
