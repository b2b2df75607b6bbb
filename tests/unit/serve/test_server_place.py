"""Where a server may listen, and whom it may trust."""

import pytest

from edl.common.errors import UsageError
from edl.serve.server import Place, Tls


def test_off_loopback_a_server_wants_tls_and_a_token_or_to_be_told_that_all_may_ask():
    tls = Tls("cert", "key")
    for bad in (
        {},
        {"token": "t"},
        {"tls": tls},
    ):
        with pytest.raises(UsageError, match="10.0.0.1 is not on loopback"):
            Place("10.0.0.1", **bad)

    Place("127.0.0.1")
    Place("10.0.0.1", plain=True)
    Place("10.0.0.1", tls=tls, token="t")
    Place("10.0.0.1", tls=Tls("cert", "key", "ca"))


@pytest.mark.parametrize("files", [("cert", ""), ("", "key"), ("", "", "ca")])
def test_half_a_certificate_is_refused(files):
    with pytest.raises(UsageError, match="both --tls_cert and --tls_key"):
        Tls(*files)


def test_a_token_is_in_no_text_of_a_place():
    assert "secret" not in repr(Place(token="secret"))
