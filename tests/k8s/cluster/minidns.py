"""A name server for a cluster: minidns.py IP SERVER TOKEN CA.

Answers for cluster.local from the Kubernetes API: services (ClusterIP), headless services (ready
endpoints, and HOSTNAME.SERVICE). All else does not exist; nothing is forwarded. UDP only.
"""

import http.client
import json
import socket
import ssl
import struct
import sys
import threading
import time
import urllib.parse

SUFFIX = ".svc.cluster.local"
A, TTL_S = 1, 5
KNOWN = {"services": {}, "endpoints": {}}  # kind -> (name, namespace) -> object


def follow(kind, server, token, ca):
    """Keep KNOWN[kind] as the API server has it."""
    url = urllib.parse.urlparse(server)
    context = ssl.create_default_context(cafile=ca)

    def get(query, timeout_s):
        connection = http.client.HTTPSConnection(
            url.hostname, url.port, context=context, timeout=timeout_s
        )
        headers = {"Authorization": f"Bearer {token}"}
        connection.request("GET", f"/api/v1/{kind}{query}", headers=headers)
        return connection.getresponse()

    while True:
        try:
            listing = json.loads(get("", 30).read())
            KNOWN[kind] = {key_of(found): found for found in listing["items"]}
            version = listing["metadata"]["resourceVersion"]
            for line in get(f"?watch=1&resourceVersion={version}&timeoutSeconds=300", 330):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    break
                KNOWN[kind].pop(key_of(event["object"]), None)
                if event["type"] != "DELETED":
                    KNOWN[kind][key_of(event["object"])] = event["object"]
        except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
            print(kind, repr(error), flush=True)
            time.sleep(0.5)


def key_of(found):
    return found["metadata"]["name"], found["metadata"]["namespace"]


def lookup(name):
    """Return the addresses of a name, or an empty list."""
    name = name.lower().rstrip(".")
    if not name.endswith(SUFFIX):
        return []
    parts = name.removesuffix(SUFFIX).split(".")
    if len(parts) not in (2, 3):
        return []
    wanted, service, namespace = parts if len(parts) == 3 else ["", *parts]
    found = KNOWN["services"].get((service, namespace))
    if not found or found["spec"].get("type") == "ExternalName":
        return []
    if found["spec"].get("clusterIP") not in (None, "", "None") and not wanted:
        return [found["spec"]["clusterIP"]]
    kinds = ["addresses"]
    if found["spec"].get("publishNotReadyAddresses"):
        kinds.append("notReadyAddresses")
    endpoints = KNOWN["endpoints"].get((service, namespace)) or {}
    return [
        address["ip"]
        for subset in endpoints.get("subsets") or []
        for kind in kinds
        for address in subset.get(kind) or []
        if not wanted or wanted in names_of(address)
    ]


def names_of(address):
    target = address.get("targetRef") or {}
    return address.get("hostname"), target.get("name"), address["ip"].replace(".", "-")


def answer(query):
    """Return the reply to a query with one question (RFC 1035, section 4)."""
    labels, at = [], 12
    while length := query[at]:
        labels.append(query[at + 1 : at + 1 + length].decode())
        at += 1 + length
    end = at + 5
    (kind,) = struct.unpack(">H", query[at + 1 : at + 3])
    addresses = lookup(".".join(labels))
    told = addresses if kind == A else []
    flags = 0x8580 if addresses else 0x8583  # an authoritative answer; 3: no such name
    header = query[:2] + struct.pack(">HHHHH", flags, 1, len(told), 0, 0)
    records = [
        b"\xc0\x0c" + struct.pack(">HHIH", A, 1, TTL_S, 4) + socket.inet_aton(a) for a in told
    ]
    return header + query[12:end] + b"".join(records)


def main():
    ip, server, token, ca = sys.argv[1:]
    for kind in KNOWN:
        threading.Thread(target=follow, args=(kind, server, token, ca), daemon=True).start()
    listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    listener.bind((ip, 53))
    while True:
        query, peer = listener.recvfrom(1500)
        try:
            reply = answer(query)
        except (IndexError, UnicodeDecodeError, struct.error) as error:
            print("not a query", repr(error), flush=True)
            continue
        listener.sendto(reply, peer)


main()
