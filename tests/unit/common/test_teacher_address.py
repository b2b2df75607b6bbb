"""Addresses of teachers that somebody else runs."""

import pytest

from edl.common.teacher_address import (
    Registered,
    Served,
    parse,
    registered_at,
    served_at,
    split_addresses,
)

pytestmark = pytest.mark.fast


def test_a_list_is_split_at_commas():
    assert ["a:1", "kserve+http://b:2/m"] == split_addresses(" a:1, kserve+http://b:2/m,,")


@pytest.mark.parametrize("address", ["10.0.0.5:7000", "[::1]:7000", "host:1"])
def test_host_and_port_is_a_teacher_of_ours(address):
    assert served_at(address) is None


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("kserve+http://h:8000/m", ("http", False, "h", 8000, "m", "")),
        ("kserve+https://h:443/m/3", ("http", True, "h", 443, "m", "3")),
        ("kserve+grpc://[::1]:8001/m", ("grpc", False, "::1", 8001, "m", "")),
        ("kserve+grpcs://h:8001/a%2Cb%2Fc/v%201", ("grpc", True, "h", 8001, "a,b/c", "v 1")),
    ],
)
def test_a_url_is_a_model_of_a_server(address, expected):
    assert Served(address, *expected) == served_at(address)


@pytest.mark.parametrize(
    ("address", "registry", "name"),
    [
        ("edl://h:7000/lenet", "h:7000", "lenet"),
        ("edl://[::1]:7000/lenet-v1.2_b", "[::1]:7000", "lenet-v1.2_b"),
    ],
)
def test_a_name_at_a_registry(address, registry, name):
    assert Registered(address, registry, name) == registered_at(address) == parse(address)
    with pytest.raises(ValueError, match="names teachers of a registry"):
        served_at(address)
    assert registered_at("h:7000") is None


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("host", "is no HOST:PORT"),
        (":7000", "is no HOST:PORT"),
        ("host:70000", "is no HOST:PORT"),
        ("http://h:8000/m", "kserve\\+http"),
        ("kserve+http://h/m", "HOST:PORT/MODEL"),
        ("kserve+http://h:x/m", "HOST:PORT/MODEL"),
        ("kserve+http://h:99999/m", "HOST:PORT/MODEL"),
        ("kserve+http://:8000/m", "HOST:PORT/MODEL"),
        ("kserve+http://h:8000", "HOST:PORT/MODEL"),
        ("kserve+http://h:8000/", "HOST:PORT/MODEL"),
        ("kserve+http://h:8000/m/", "HOST:PORT/MODEL"),
        ("kserve+http://h:8000/m/1/infer", "HOST:PORT/MODEL"),
        ("kserve+http://me:secret@h:8000/m", "HOST:PORT/MODEL"),
        ("kserve+http://h:8000/m?a=b", "HOST:PORT/MODEL"),
        ("kserve+http://[::1:8000/m", "HOST:PORT/MODEL"),
        ("edl://h/lenet", "is no edl://HOST:PORT/NAME"),
        ("edl://h:7000", "is no edl://HOST:PORT/NAME"),
        ("edl://h:7000/a/b", "is no edl://HOST:PORT/NAME"),
        ("edl://h:7000/a%20b", "names 'a b', which is no name"),
        ("edl://h:7000/.a", "names '.a', which is no name"),
    ],
)
def test_what_is_neither_is_told_what_it_should_be(address, reason):
    with pytest.raises(ValueError, match=reason):
        served_at(address)
