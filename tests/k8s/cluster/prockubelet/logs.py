"""The server of a kubelet that the API server asks when somebody reads a pod's log."""

import http.server
import re
import ssl
import threading
import time
import urllib.parse


def serve(nodes, given):
    class Handler(LogHandler):
        kubelet = nodes

    server = http.server.ThreadingHTTPServer((given.node_ip, given.log_port), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(given.cert, given.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()


class LogHandler(http.server.BaseHTTPRequestHandler):
    """A handler of requests for a container's log.

    GET /containerLogs/NAMESPACE/POD/CONTAINER?follow=true&previous=true&tailLines=N
    """

    kubelet = None

    def do_GET(self):
        url = urllib.parse.urlparse(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        _, what, namespace, pod, container, *_ = [*url.path.split("/"), "", "", "", ""]
        file = None
        if what == "containerLogs":
            file = self._file(namespace, pod, container, query.get("previous") == "true")
        self.send_response(200 if file else 400)
        self.send_header("Content-Type", "text/plain")
        self.end_headers()
        if file is None:
            return
        with open(file, "rb") as stream:
            text = stream.read()
            if tail := int(query.get("tailLines", 0)):
                text = b"".join(text.splitlines(True)[-tail:])
            self.wfile.write(text)
            if query.get("follow") == "true":
                self._follow(stream, namespace, pod, container)

    def _file(self, namespace, pod, container, previous):
        folders = self.kubelet.logs_folder.glob(f"{namespace}_{pod}_*")
        folder = max(folders, key=lambda path: path.stat().st_mtime, default=None)
        if folder is None:
            return None
        name = re.compile(re.escape(container) + r"-(\d+)\.log")
        found = {int(m[1]): path for path in folder.iterdir() if (m := name.fullmatch(path.name))}
        numbers = sorted(found)[: -1 if previous else None]
        return found[numbers[-1]] if numbers else None

    def _follow(self, stream, namespace, pod, container):
        while True:
            live = self._is_live(namespace, pod, container)  # asked first: then nothing is missed
            text = stream.read()
            self.wfile.write(text)
            self.wfile.flush()
            if not live and not text:
                return
            time.sleep(0.1)

    def _is_live(self, namespace, pod_name, container):
        return any(
            (pod.namespace, pod.pod_name) == (namespace, pod_name)
            and pod.is_alive()
            and any(c.name == container and c.is_running() for c in pod.all_containers)
            for pod in list(self.kubelet.pods.values())
        )

    def log_message(self, *_):
        pass
