"""The names of services, written for a name server out of the API: dnsmasq reads what changes.

A service with an address of its own is that; a headless one is its endpoints that are ready, each
also as HOSTNAME.SERVICE. All else does not exist.
"""

import threading

SOURCES = {
    "services": "/api/v1/services",
    "endpointslices": "/apis/discovery.k8s.io/v1/endpointslices",
}


class Names:
    def __init__(self, api, folder):
        self.api, self.file, self.part = api, folder / "services", folder.with_suffix(".new")
        self.known = {kind: {} for kind in SOURCES}  # uid -> object
        self.lock = threading.Lock()

    def start(self):
        for kind, path in SOURCES.items():
            threading.Thread(target=self._follow, args=(kind, path), daemon=True).start()

    def _follow(self, kind, path):
        def on_list(items):
            self._write(kind, {found["metadata"]["uid"]: found for found in items})

        def on_event(event, found):
            uid = found["metadata"]["uid"]
            others = {key: it for key, it in self.known[kind].items() if key != uid}
            self._write(kind, others if event == "DELETED" else {**others, uid: found})

        self.api.follow(path, on_list, on_event)

    def _write(self, kind, known):
        with self.lock:
            self.known[kind] = known
            self.part.write_text("".join(f"{line}\n" for line in sorted(self._lines())))
            self.part.rename(self.file)

    def _lines(self):
        headless = set()
        for found in self.known["services"].values():
            meta, address = found["metadata"], found["spec"].get("clusterIP")
            name = f"{meta['name']}.{meta['namespace']}.svc.cluster.local"
            if address == "None":
                headless.add(name)
            elif address:
                yield f"{address} {name}"
        for found in self.known["endpointslices"].values():
            meta = found["metadata"]
            service = (meta.get("labels") or {}).get("kubernetes.io/service-name")
            name = f"{service}.{meta['namespace']}.svc.cluster.local"
            for each in (found.get("endpoints") or []) if name in headless else []:
                if (each.get("conditions") or {}).get("ready") is not False:
                    for address in each["addresses"]:
                        own = f" {each['hostname']}.{name}" if each.get("hostname") else ""
                        yield f"{address} {name}{own}"
