"""A pod's address, and its network namespace on the cluster's bridge."""

import ipaddress
import itertools
import subprocess
import threading


class Network:
    """The addresses of `cidr`, one after the other; the first is the bridge's own."""

    def __init__(self, *, bridge, cidr, prefix):
        self.bridge, self.prefix = bridge, prefix
        self.network = ipaddress.ip_network(cidr)
        self.room = self.network.num_addresses - 3  # without the network's, the bridge's, broadcast
        self.numbers = itertools.count()
        self.lock = threading.Lock()

    def address(self):
        return str(self.network[2 + next(self.numbers) % self.room])

    def join(self, uid, address):
        """Return the name of the pod's network namespace, which has `address`."""
        short = uid.replace("-", "")[:12]
        name, veth = f"{self.prefix}{short}", f"v{short}"  # an interface's name: 15 characters
        with self.lock:  # `ip netns add` races with itself
            _run("ip", "netns", "add", name)
        peer = ("peer", "name", "eth0", "netns", name)
        _run("ip", "link", "add", veth, "mtu", "1400", "type", "veth", *peer)
        _run("ip", "link", "set", veth, "master", self.bridge, "up")
        steps = [
            "link set lo up",
            f"addr add {address}/{self.network.prefixlen} dev eth0",
            "link set eth0 up",
            f"route add default via {self.network[1]}",
        ]
        _run("ip", "-n", name, "-batch", "-", stdin="\n".join(steps))
        return name

    def leave(self, name):
        if name:
            subprocess.run(["ip", "netns", "del", name], check=False)


def _run(*command, stdin=""):
    subprocess.run(command, check=True, input=stdin, text=True, stdout=subprocess.DEVNULL)
