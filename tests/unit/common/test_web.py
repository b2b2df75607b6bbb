"""What strangers may cost a server of HTTP: over real sockets, in one loop with the server."""

import asyncio
import contextlib
import errno
import logging
import socket
import ssl

import pytest
import uvicorn.config
import uvloop
from tools.certificates import certified

from edl.common import web, web_connections
from edl.common.web import Tls
from edl.common.web_connections import Bounds, Room

FAR_S = 1e6  # of a clock that tests put forward
HALF = b"GET /health HTTP/1.1\r\nHost: "
WHOLE = b"GET /health HTTP/1.1\r\nHost: here\r\n\r\n"
POST = b"POST %s HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n"
uvloop.new_event_loop().close()  # libuv keeps a pipe for signals from its first loop on
ALL = pytest.mark.parametrize("run", ["uvloop", "httptools", "h11"], indirect=True)


class Loop(asyncio.SelectorEventLoop):
    """A loop whose clock a test puts forward."""

    ahead_s = 0.0

    def time(self):
        return super().time() + self.ahead_s


async def later(seconds):
    """Let so much time pass at once, and what is due happen."""
    asyncio.get_running_loop().ahead_s += seconds
    for _ in range(5):
        await asyncio.sleep(0)


class App:
    """An application that answers at once, but to /slow when it may, and to /long at length."""

    def __init__(self):
        self.may_answer = asyncio.Event()
        self.asked = asyncio.Event()
        self.hung_up = asyncio.Event()

    async def __call__(self, scope, receive, send):
        self.asked.set()
        if scope["path"] == "/slow":
            await self.may_answer.wait()
        if scope["path"] == "/body":
            while (await receive()).get("more_body"):
                pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(32 if scope["path"] == "/long" else 0):
            body = b"x" * (1 << 20)
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"well", "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        if (await receive())["type"] == "http.disconnect":
            self.hung_up.set()


@pytest.fixture(params=["httptools", "h11"])
def run(request, monkeypatch):
    """Return what serves within bounds while a coroutine asks, by each parser."""
    kinds = uvicorn.config.HTTP_PROTOCOLS
    monkeypatch.setitem(kinds, "auto", kinds[request.param.replace("uvloop", "httptools")])
    factory = uvloop.new_event_loop if request.param == "uvloop" else Loop

    def served(ask, bounds=None, tls=None):
        async def all_of_it():
            sock = web.bound("127.0.0.1", 0, "--port")
            port, app = sock.getsockname()[1], App()
            serving = web.serving(app, sock, tls or Tls(), lifespan="off", end_s=1, bounds=bounds)
            async with asyncio.timeout(FAR_S), serving, contextlib.AsyncExitStack() as undo:

                async def connect(first=b"", **how):
                    reader, writer = await asyncio.open_connection("127.0.0.1", port, **how)
                    undo.callback(writer.close)
                    writer.write(first)
                    return reader, writer

                return await ask(connect, app)

        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(all_of_it())

    return served


async def answer(reader):
    """Return the status of an answer of which the body is `well`."""
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readuntil(b"well\r\n0\r\n\r\n")
    return int(head.split()[1])


async def ended(reader):
    """Return what comes before the connection ends."""
    try:
        return await reader.read()
    except ConnectionError:
        return b""


def test_half_a_header_is_given_up_and_one_that_trickles_too(run):
    async def ask(connect, _app):
        half, _ = await connect(HALF)
        silent, _ = await connect()
        trickles, writer = await connect(b"GET / HTTP/1.1\r\nx: ")
        both = asyncio.gather(ended(half), ended(silent))
        third = asyncio.create_task(ended(trickles))
        for _ in range(9):
            writer.write(b"E")
            await later(1.0)
        early = both.done(), third.done()
        await later(3.0)
        return early, await both, (await third)[:12]

    early, (half, silent), trickled = run(ask)

    assert ((False, False), b"") == (early, silent)
    assert {b"HTTP/1.1 408"} == {half[:12], trickled}
    assert half.endswith(b"The header of a request has to be there within 10 s.")


def test_a_header_has_so_many_bytes_and_no_more_however_it_comes(run):
    def header(nbytes, first=b"GET /health HTTP/1.1\r\nHost: here\r\nx: "):
        return first + b"y" * (nbytes - len(first) - 4) + b"\r\n\r\n"

    async def ask(connect, _app):
        fits, writer = await connect(header(1000))
        said = [await answer(fits)]
        writer.write(header(1000))  # each request anew
        said.append(await answer(fits))
        whole, _ = await connect(header(1001))
        pieces, writer = await connect()
        for byte in header(1001):
            writer.write(bytes([byte]))
            await writer.drain()
        said += [int((await each.readline()).split()[1]) for each in (whole, pieces)]
        assert (await ended((await connect(header(1 << 20)))[0]))[:12] in (b"HTTP/1.1 431", b"")
        return said

    assert [200, 200, 431, 431] == run(ask, Bounds(header_nbytes=1000))


@ALL
def test_health_is_answered_while_many_hold_half_a_header(run, caplog):
    """Who asks nothing makes room for the next, and a line says how many did."""
    caplog.set_level(logging.WARNING, "edl.web")

    async def ask(connect, _app):
        halves = [await connect(HALF) for _ in range(40)]
        fresh, _ = await connect(WHOLE)
        status = await answer(fresh)
        for reader, _ in halves[:37]:
            assert b"" == await ended(reader)
        return status

    assert 200 == run(ask, Bounds(connections=4, told_s=FAR_S))
    first, last = (record.getMessage() for record in caplog.records)
    assert "connections=3/4 -> ended=1" == first
    assert "ended=36" in last


@ALL
def test_a_request_that_is_under_way_makes_room_for_nobody(run):
    async def ask(connect, app):
        slow, _ = await connect(WHOLE.replace(b"/health", b"/slow"))
        await app.asked.wait()
        halves = [await connect(HALF) for _ in range(9)]
        assert b"" == await ended(halves[0][0])
        app.may_answer.set()
        return await answer(slow)

    assert 200 == run(ask, Bounds(connections=2))


def test_where_requests_of_all_are_under_way_another_is_turned_away(run):
    async def ask(connect, app):
        slow, writer = await connect(WHOLE.replace(b"/health", b"/slow"))
        await app.asked.wait()
        other, _ = await connect()
        assert b"" == await ended(other)
        app.may_answer.set()
        assert 200 == await answer(slow)
        writer.write(WHOLE)
        return await answer(slow)

    assert 200 == run(ask, Bounds(connections=1, header_s=FAR_S))


def test_a_body_that_was_answered_before_it_came_is_read_a_little_and_no_more(run):
    """As where the token is missing: who has not sent much may go on, who sends more is ended."""

    async def ask(connect, _app):
        small, writer = await connect(POST % (b"/health", 500))
        said = [await answer(small)]
        writer.write(b"x" * 500 + WHOLE)
        said.append(await answer(small))
        large, writer = await connect(POST % (b"/health", 5000))
        said.append(await answer(large))
        with contextlib.suppress(ConnectionError):
            for _ in range(5):
                writer.write(b"x" * 1000)
                await writer.drain()
            writer.write(WHOLE)
        assert b"" == await ended(large)
        trickles, writer = await connect(POST % (b"/health", 500))
        said.append(await answer(trickles))
        for _ in range(12):
            writer.write(b"x")
            await later(1.0)
        assert b"" == await ended(trickles)
        return said

    assert [200, 200, 200, 200] == run(ask, Bounds(unread_nbytes=1000))


def test_a_body_that_the_application_wants_has_its_own_bounds(run):
    async def ask(connect, app):
        reader, writer = await connect(POST % (b"/body", 9000))
        await app.asked.wait()
        await later(11.0)
        for _ in range(9):
            writer.write(b"x" * 1000)
            await writer.drain()
        return await answer(reader)

    assert 200 == run(ask, Bounds(header_nbytes=1000, unread_nbytes=1000))


def test_who_does_not_read_his_answer_is_given_up(run):
    async def ask(connect, app):
        await connect(WHOLE.replace(b"/health", b"/long"), limit=1000)
        await app.asked.wait()
        while not app.hung_up.is_set():
            await later(31.0)
            await asyncio.sleep(0.001)
        return True

    assert run(ask)


def test_what_is_no_http_is_counted_and_no_line_each(run, caplog):
    caplog.set_level(logging.WARNING)

    async def ask(connect, _app):
        readers = [(await connect(b"no request at all\r\n\r\n"))[0] for _ in range(5)]
        return {(await ended(each)).split()[1] for each in readers}

    assert {b"400"} == run(ask)
    assert ["bad=1", "bad=4"] == [r.getMessage().split()[-1] for r in caplog.records]


@ALL
def test_a_handshake_of_tls_counts_as_a_connection(run, tmp_path):
    certificate, key = certified(tmp_path)

    async def ask(connect, _app):
        halves = [(await connect())[0] for _ in range(9)]
        trust = ssl.create_default_context(cafile=certificate)
        reader, _ = await connect(WHOLE, ssl=trust)
        status = await answer(reader)
        return status, [await ended(each) for each in halves[:6]]

    assert (200, [b""] * 6) == run(
        ask, Bounds(connections=4, header_s=FAR_S), Tls(certificate, key)
    )


def test_a_handshake_of_tls_is_given_up(run, tmp_path):
    async def ask(connect, _app):
        reader, _ = await connect(b"\x16\x03\x01")
        over = asyncio.create_task(ended(reader))
        await asyncio.sleep(0.01)  # it is accepted
        await later(11.0)
        return await over

    assert b"" == run(ask, tls=Tls(*certified(tmp_path)))


@pytest.mark.parametrize("run", ["httptools"], indirect=True)
def test_a_server_that_has_no_descriptor_left_goes_on_once_it_has(run, monkeypatch, caplog):
    caplog.set_level(logging.WARNING, "edl.web")
    accept, failures = socket.socket.accept, [errno.EMFILE, errno.ECONNABORTED]

    def failing(sock):
        if failures:
            raise OSError(failures.pop(), "no descriptor")
        return accept(sock)

    async def ask(connect, _app):
        return await answer((await connect(WHOLE))[0])

    monkeypatch.setattr(socket.socket, "accept", failing)
    assert 200 == run(ask)
    assert ["EMFILE=1"] == [r.getMessage().split()[-1] for r in caplog.records]


def test_who_makes_room_is_first_who_never_asked_and_then_who_rests_longest():
    room = Room(9)
    for one in "abcd":
        room.add(one)
    for one in "ab":
        room.asks(one)
    room.rests("b")

    assert ["c", "d", "b", None] == [room.oldest() for _ in range(4)]
    assert 1 == len(room)
    room.rests("b")  # it has ended meanwhile
    room.rests("a")
    assert ["a", None] == [room.oldest(), room.oldest()]


def test_connections_are_half_of_the_files_that_may_be_open(monkeypatch):
    found = []
    for limit in (256, 1 << 20, web_connections.resource.RLIM_INFINITY, 4):
        monkeypatch.setattr(web_connections.resource, "getrlimit", lambda _, n=limit: (n, n))
        found.append(web_connections.most_connections())

    assert [128, 4096, 4096, 8] == found
