"""HTTP for the native lanes: one POST, sent once, its answer read whole or as it comes.

This is the synchronous side, the standard library's client on a small pool of connections, with its rules for
proxies and its defaults for TLS. The asynchronous one is `transport_async.py`. Nothing here knows a provider.
"""

from __future__ import annotations

import atexit
import base64
import io
import os
import select
import socket
import ssl
import time
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from string import punctuation
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

from acorn.models.lanes.http_response import Response

_IDLE = 50.0
"""Seconds after which a connection that nobody used is not trusted any more."""
_PIECE = 65536
_ANY_HEADER = 47
"""How zlib is told to take gzip's as well as its own."""
_REST = 0.02
"""Seconds to wait for the end of a stream whose last event is there: less than a new connection would take."""


class TransportError(Exception):
    """No whole answer came."""


class ResponseTimeoutError(TransportError):
    """None came in time."""


@dataclass(frozen=True, slots=True)
class Post:
    """What is sent."""

    url: str
    headers: Mapping[str, str]
    body: bytes
    connect: float | None
    """Seconds for the connection."""
    read: float | None
    """Seconds for each piece of the answer."""
    until: float | None
    """When all of it must be over, by the monotonic clock."""

    def patience(self, seconds: float | None) -> float | None:
        """How long to wait for the next thing: so many seconds, but not beyond the end."""
        if self.until is None:
            return seconds
        left = self.until - time.monotonic()
        if left <= 0:
            raise ResponseTimeoutError("the time was up.")
        return left if seconds is None else min(seconds, left)


@lru_cache(maxsize=64)
def split(url: str) -> SplitResult:
    return urlsplit(url)


_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_PROXY_NAMES = (*_PROXIES, *map(str.upper, _PROXIES))


def proxy_of(url: str) -> str | None:
    """The proxy that the environment names for an address."""
    address = split(url)
    return _proxy(address.scheme, address.hostname or "", tuple(map(os.environ.get, _PROXY_NAMES)))


@lru_cache(maxsize=64)
def _proxy(scheme: str, host: str, _environment: tuple[str | None, ...]) -> str | None:
    proxies = getproxies()  # which looks through all of the environment
    found = proxies.get(scheme) or proxies.get("all")
    if not found or proxy_bypass(host):
        return None
    found = found if "://" in found else f"http://{found}"
    if not is_address(found):
        raise TransportError("the proxy that the environment names is no address")
    return found


@lru_cache(maxsize=64)
def is_address(url: str) -> bool:
    """Whether a request can be sent there."""
    try:
        address = urlsplit(url)
        host = (address.hostname or "").encode("idna")
        return address.scheme in ("http", "https") and bool(host) and address.port != 0
    except ValueError:
        return False


def tls() -> ssl.SSLContext:
    """Checked as the system says, or `SSL_CERT_FILE` and `SSL_CERT_DIR`."""
    return _tls(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@lru_cache(maxsize=8)
def _tls(_file: str | None, _folder: str | None) -> ssl.SSLContext:
    return ssl.create_default_context()


# The pool: by address and proxy, what can be used again, the last used first.

_Key = tuple[str, str | None]
_free: dict[_Key, deque[tuple[HTTPConnection, float]]] = {}


def _drop_all() -> None:
    for waiting in _free.values():
        while waiting:
            waiting.pop()[0].close()
    _free.clear()


atexit.register(_drop_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_all)  # two processes on one connection would read each other's answers


def _take(key: _Key) -> HTTPConnection | None:
    waiting = _free.get(key)
    while waiting:
        try:
            connection, since = waiting.pop()
        except IndexError:  # another thread was quicker
            return None
        if time.monotonic() - since < _IDLE and not _has_news(connection.sock):
            return connection
        connection.close()
    return None


def _give_back(key: _Key, connection: HTTPConnection) -> None:
    waiting = _free.setdefault(key, deque())
    with suppress(IndexError, ValueError):  # another thread was quicker
        while waiting:  # the longest unused are never taken while one is enough, and would stay for ever
            oldest = waiting[0]
            if time.monotonic() - oldest[1] < _IDLE and not _has_news(oldest[0].sock):
                break
            waiting.remove(oldest)
            oldest[0].close()
    waiting.append((connection, time.monotonic()))


def _has_news(sock: socket.socket | None) -> bool:
    """Whether there is something to read where nothing was asked for: the other side has closed it."""
    if sock is None:
        return True
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        return bool(poll.poll(0))
    return bool(select.select([sock], [], [], 0)[0])


def _connect(post: Post, proxy: str | None) -> HTTPConnection:
    address, timeout = split(post.url), post.patience(post.connect)
    host, port = address.hostname or "", address.port
    if proxy is None:
        if address.scheme == "https":
            return HTTPSConnection(host, port, timeout=timeout, context=tls())
        return HTTPConnection(host, port, timeout=timeout)
    way = split(proxy)
    kind: Any = HTTPSConnection if way.scheme == "https" else HTTPConnection
    if address.scheme != "https":
        made: HTTPConnection = kind(way.hostname or "", way.port, timeout=timeout)
        return made
    tunnel = HTTPSConnection(way.hostname or "", way.port, timeout=timeout, context=tls())
    tunnel.set_tunnel(host, port or 443, headers=_credentials(proxy))
    return tunnel


def _credentials(proxy: str) -> dict[str, str]:
    basic = basic_of(proxy)
    return {"Proxy-Authorization": basic} if basic else {}


def basic_of(url: str) -> str | None:
    """The user and the password in an address, as a header has them."""
    address = split(url)
    if address.username is None:
        return None
    words = f"{unquote(address.username)}:{unquote(address.password or '')}"
    return f"Basic {base64.b64encode(words.encode()).decode()}"


def moved_to(post: Post, status: int, location: str | None) -> Post | None:
    """The same request for where an answer says that it has moved; None where it does not, or to another host."""
    if status not in (307, 308) or not location:
        return None
    url = urljoin(post.url, location)
    here, there = split(post.url), split(url)
    return replace(post, url=url) if (here.scheme, here.netloc) == (there.scheme, there.netloc) else None


class _Bounded(io.RawIOBase):
    """What comes from a socket, each piece in the time that is left: headers may come letter by letter."""

    def __init__(self, sock: Any, post: Post) -> None:
        self._sock, self._post = sock, post
        self.seconds = post.read

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._sock.settimeout(self._post.patience(self.seconds))
        count: int = self._sock.recv_into(buffer)
        return count


class Incoming:
    """An answer on its way."""

    def __init__(self, post: Post, key: _Key, connection: HTTPConnection) -> None:
        self._post, self._key = post, key
        self._connection: HTTPConnection | None = connection
        self._sock: Any = connection.sock
        self._bounded = None if post.until is None else _Bounded(self._sock, post)
        source: Any = self._bounded or self._sock
        self._response = Response(source, method="POST")
        try:
            self._response.begin()
        except BaseException:
            self._response.close()  # it holds the socket as well
            raise
        self.status: int = self._response.status
        encoding = (self.header("content-encoding") or "").lower()
        self._unpack = zlib.decompressobj(_ANY_HEADER) if encoding in ("gzip", "x-gzip", "deflate") else None
        """For an answer that was compressed though nobody asked for it."""

    def header(self, name: str) -> str | None:
        return self._response.headers.get(name)

    def read(self) -> bytes:
        """All of it."""
        return b"".join(self.pieces())

    def pieces(self) -> Iterator[bytes]:
        """As it comes; the connection is free again behind the last piece."""
        response, unpack = self._response, self._unpack
        try:
            while data := response.read1(_PIECE):
                if unpack is None:
                    yield data
                elif text := unpack.decompress(data):
                    yield text
        except (OSError, HTTPException, zlib.error) as error:
            raise _trouble(error) from error
        if response.length or (unpack is not None and not unpack.eof):  # any end is taken for the end
            raise TransportError("the connection broke inside the answer.")
        self._free()

    def finish(self) -> None:
        """All that counts was read; if the end is there as well, the connection is free again."""
        if not self._response.will_close:
            with suppress(OSError, HTTPException, TransportError):
                if self._bounded is not None:
                    self._bounded.seconds = _REST
                self._sock.settimeout(_REST)
                if not self._response.read1(_PIECE) and not self._response.length:
                    self._free()

    def _free(self) -> None:
        if self._connection is not None and not self._response.will_close:
            self._response.close()
            _give_back(self._key, self._connection)
            self._connection = None

    def close(self) -> None:
        """Nobody wants the rest."""
        self._response.close()
        if self._connection is not None:
            self._connection.close()


def send(post: Post) -> Incoming:
    """Send a request, and come back when its answer begins."""
    incoming = _send(post)
    if (there := moved_to(post, incoming.status, incoming.header("location"))) is not None:
        incoming.close()
        return _send(there)
    return incoming


def _send(post: Post) -> Incoming:
    proxy = proxy_of(post.url)
    address = split(post.url)
    key = (f"{address.scheme}://{address.netloc}", proxy)
    connection = _take(key)
    try:
        if connection is None:
            connection = _connect(post, proxy)
            connection.connect()
        assert connection.sock is not None
        connection.sock.settimeout(post.patience(post.read))
        connection.sock.sendall(_head(post, proxy) + post.body)
        return Incoming(post, key, connection)
    except BaseException as error:
        if connection is not None:
            connection.close()
        if isinstance(error, OSError | HTTPException):
            raise _trouble(error) from error
        raise


def _head(post: Post, proxy: str | None) -> bytes:
    """What stands before the body. By hand: the standard library would send it in a packet of its own."""
    address = split(post.url)
    target = quote((address.path or "/") + (f"?{address.query}" if address.query else ""), safe=punctuation)
    headers = {"Host": address.netloc.rpartition("@")[2], "Accept-Encoding": "identity", **post.headers}
    if proxy is not None and address.scheme != "https":
        target, headers = quote(post.url, safe=punctuation), {**headers, **_credentials(proxy)}
    lines = [f"POST {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    lines.append(f"Content-Length: {len(post.body)}")
    if any("\r" in line or "\n" in line or not line.isascii() for line in lines):
        raise TransportError("a header or the address holds a line end or a letter that HTTP does not take")
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def _trouble(error: Exception) -> TransportError:
    if isinstance(error, TimeoutError):
        return ResponseTimeoutError("no answer came in time.")
    return TransportError(str(error) or type(error).__name__)
