"""The process kubelet, until SIGTERM: python3 -m prockubelet --server URL --token TOKEN ..."""

import argparse
import threading
from pathlib import Path

from . import logs
from .api import Api
from .names import Names
from .network import Network
from .node import Nodes, on_signal
from .volumes import KINDS


def arguments():
    parser = argparse.ArgumentParser(prog="prockubelet", description="A process kubelet.")
    required = "server token ca cert key root images names cgroup version"
    for name in f"{required} bridge cidr dns node-ip netns-prefix".split():
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--cpu", default="4")
    parser.add_argument("--memory", default="8Gi")
    parser.add_argument("--pods", default="110")
    parser.add_argument("--prefix", default="pk-", help="of the nodes' names")
    parser.add_argument("--heartbeat-s", type=float, default=3.0)
    parser.add_argument("--log-port", type=int, default=10260)
    return parser.parse_args()


def main():
    given = arguments()
    api = Api(given.server, token=given.token, ca=given.ca)
    network = Network(bridge=given.bridge, cidr=given.cidr, prefix=given.netns_prefix)
    nodes = Nodes(api, network, given)
    nodes.prepare()
    on_signal(nodes)
    Names(api, Path(given.names)).start()
    logs.serve(nodes, given)
    threading.Thread(target=nodes.heartbeat, args=(given.heartbeat_s,), daemon=True).start()
    for kind in KINDS.values():
        threading.Thread(target=nodes.follow_data, args=(kind,), daemon=True).start()
    nodes.follow_pods()


main()
