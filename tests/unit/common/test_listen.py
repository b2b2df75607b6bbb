"""The addresses where a process listens, by EDL_HOST and fixed ports, and what others are told."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import urllib.request

import pytest
from prometheus_client import CollectorRegistry
from tools import own

from edl.common import listen
from edl.common.errors import UsageError


def test_a_process_listens_on_loopback_unless_told_otherwise(monkeypatch):
    monkeypatch.delenv("EDL_HOST", raising=False)
    assert "127.0.0.1" == listen.own_host()

    monkeypatch.setenv("EDL_HOST", "127.0.0.2")
    assert "127.0.0.2" == listen.own_host()


@pytest.mark.parametrize("host", ["203.0.113.7", "0.0.0.0", "::"])
def test_a_host_that_cannot_be_told_to_others_is_one_clear_error(monkeypatch, host):
    monkeypatch.setenv("EDL_HOST", host)

    with pytest.raises(UsageError, match=f"EDL_HOST={host}: .* Set it to one address of this host"):
        listen.own_host()


_ALONE = ["unshare", "--map-root-user", "--net"]  # a network whose loopback is down


@pytest.mark.skipif(
    subprocess.run([*_ALONE, "true"], check=False, capture_output=True).returncode != 0,
    reason="no network namespace for this user",
)
def test_a_network_without_a_loopback_is_one_clear_error_before_anything_is_begun(tmp_path):
    """Broken once: one can bind there, so the job began, and nobody could call anybody."""
    data = tmp_path / "data.csv"
    data.write_text("a,y\n1,0\n")
    flags = ("--model_def", "iris", "--training_data", str(data), "--job_name", "alone")
    ended = subprocess.run(
        [*_ALONE, sys.executable, "-m", "edl", "train", *flags],
        env={**os.environ, "EDL_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert 2 == ended.returncode, ended.stderr
    (said,) = ended.stderr.splitlines()
    assert said.startswith(
        "edl: error: The processes of a job call each other at 127.0.0.1, which "
    )
    assert "`ip link set lo up`" in said
    assert not (tmp_path / "home" / "jobs").exists()


@pytest.mark.parametrize(("host", "address"), [("10.0.0.1", "10.0.0.1:7"), ("::1", "[::1]:7")])
def test_an_address_is_joined_and_taken_apart(host, address):
    assert address == listen.joined(host, 7)
    assert host == listen.host_of(address)


def test_loopback_is_told_from_what_others_reach():
    here = ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "localhost"]
    not_here = ["10.0.0.1", "::", "fe80::1%eth0", "edl-job.default.svc", ""]

    assert here == [host for host in here + not_here if listen.is_loopback(host)]


@pytest.mark.parametrize("value", ["65536", "-1", "http", "1.5"])
def test_what_is_no_port_is_one_clear_error(monkeypatch, value):
    monkeypatch.setenv("EDL_METRICS_PORT", value)

    with pytest.raises(UsageError, match=f"EDL_METRICS_PORT={value} is no port"):
        listen.serve_metrics(CollectorRegistry())


def test_metrics_are_served_at_the_port_that_is_set(monkeypatch):
    port = own.free_port()
    monkeypatch.setenv("EDL_HOST", "127.0.0.2")
    monkeypatch.setenv("EDL_METRICS_PORT", str(port))

    server, address = listen.serve_metrics(CollectorRegistry())
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=300) as page:
        status = page.status
    server.shutdown()
    server.server_close()

    assert (200, f"127.0.0.2:{port}") == (status, address)


def test_whoever_holds_connections_of_the_metrics_open_keeps_nobody_out(monkeypatch):
    monkeypatch.delenv("EDL_METRICS_PORT", raising=False)
    monkeypatch.setattr(listen, "_METRICS_CONNECTIONS", 2)
    server, address = listen.serve_metrics(CollectorRegistry())
    host, _, port = address.rpartition(":")

    idle = [socket.create_connection((host, int(port)), 10) for _ in range(5)]
    ended = [sock.recv(1) for sock in idle[:3]]
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as page:
        status = page.status
    for sock in idle:
        sock.close()
    server.shutdown()
    server.server_close()

    assert ([b""] * 3, 200) == (ended, status)


def test_strangers_have_a_moment_and_who_comes_meanwhile_waits_for_room():
    strangers = listen.Strangers(1, moment_s=300.0)
    (first, others_end), (second, _) = pairs = socket.socketpair(), socket.socketpair()
    strangers.add(first)
    thread = threading.Thread(target=strangers.add, args=(second,), daemon=True)
    thread.start()
    thread.join(0.05)
    known = strangers.remove(first)
    thread.join(300.0)

    assert (True, True, 0) == (known, strangers.remove(second), len(strangers))
    others_end.setblocking(False)
    with pytest.raises(BlockingIOError):  # nobody hung up on the first
        others_end.recv(1)
    for sock in (*pairs[0], *pairs[1]):
        sock.close()


def test_a_metrics_connection_that_says_nothing_is_ended(monkeypatch):
    monkeypatch.delenv("EDL_METRICS_PORT", raising=False)
    monkeypatch.setattr(listen, "_METRICS_S", 0.05)
    server, address = listen.serve_metrics(CollectorRegistry())
    host, _, port = address.rpartition(":")

    with socket.create_connection((host, int(port)), 30) as idle:
        ended = idle.recv(1)
    server.shutdown()
    server.server_close()

    assert b"" == ended


def test_a_header_of_the_metrics_is_bounded_however_it_comes(monkeypatch):
    """A byte now and then is no silence, and http.server takes a hundred lines of 64 KiB."""
    monkeypatch.delenv("EDL_METRICS_PORT", raising=False)
    server, address = listen.serve_metrics(CollectorRegistry())
    host, _, port = address.rpartition(":")

    with socket.create_connection((host, int(port)), 30) as large:
        with contextlib.suppress(ConnectionError):
            large.sendall(b"GET /metrics HTTP/1.1\r\n" + b"x: " + b"y" * 60_000 + b"\r\n")
            large.sendall(b"x: " + b"y" * 60_000 + b"\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            assert b"" == large.recv(1)
    monkeypatch.setattr(listen, "_METRICS_S", 0.1)
    with socket.create_connection((host, int(port)), 30) as slow:
        slow.settimeout(0.01)
        ended = None
        while ended is None:
            try:
                slow.sendall(b"G")
                ended = slow.recv(1)
            except TimeoutError:
                continue
            except ConnectionError:
                ended = b""
    server.shutdown()
    server.server_close()

    assert b"" == ended


def test_a_metrics_port_that_is_taken_is_one_clear_error(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("EDL_METRICS_PORT", str(taken.getsockname()[1]))

        with pytest.raises(UsageError, match="in use. Set EDL_METRICS_PORT to a port that is free"):
            listen.serve_metrics(CollectorRegistry())
