"""Synchronous HTTP for the native lanes: POST requests, with complete or streamed responses.

This module uses the HTTP client, the proxy rules and the TLS defaults of the standard library, and adds a small
connection pool. It contains no code for a specific provider. `http_async.py` is the asynchronous version.
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
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from string import punctuation
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from acorn._base.clock import current_clock
from acorn._base.forks import call_in_child
from acorn.models.lanes.http_response import ContentDecoder, ResponseReader, ResponseTimeoutError, TransportError

_IDLE_SECONDS = 50.0
"""The seconds after which acorn closes an idle connection instead of using it again."""
_FINISH_SECONDS = 0.02
"""The maximum seconds to wait for the end of a stream after its last event. A new connection would take longer."""


@dataclass(frozen=True, slots=True)
class Post:
    """An HTTP POST request with its timeouts."""

    url: str
    headers: Mapping[str, str]
    body: bytes
    connect_timeout: float | None
    """The maximum seconds to wait for the connection, or None for no limit."""
    read_timeout: float | None
    """The maximum seconds to wait for the next part of the response, or None for no limit."""
    deadline: float | None
    """The time on the monotonic clock by which a complete stream must arrive, or None for no limit."""
    start_deadline: float | None
    """The time by which the headers of a stream, or any other complete response, must arrive, or None for no limit."""
    max_bytes: int
    """The maximum number of decompressed bytes of the response, or of one event of a stream."""
    is_stream: bool

    def limit_timeout(self, seconds: float | None) -> float | None:
        """Return a timeout in seconds that ends no later than `start_deadline`.

        Raise `ResponseTimeoutError` if this deadline has passed.
        """
        return limit_timeout(seconds, self.start_deadline)


def limit_timeout(seconds: float | None, deadline: float | None) -> float | None:
    """Return a timeout in seconds that ends no later than a deadline on the monotonic clock.

    Raise `ResponseTimeoutError` if the deadline has passed.
    """
    if deadline is None:
        return seconds
    left = deadline - current_clock().monotonic()
    if left <= 0:
        raise ResponseTimeoutError("The response did not arrive before the deadline of the request.")
    return left if seconds is None else min(seconds, left)


# URLs, proxies and TLS


@lru_cache(maxsize=64)
def split_url(url: str) -> SplitResult:
    return urlsplit(url)


@lru_cache(maxsize=64)
def is_http_url(url: str) -> bool:
    """Return True if a URL is a valid `http` or `https` URL with a host."""
    try:
        address = urlsplit(url)
        host = (address.hostname or "").encode("idna")
        return address.scheme in ("http", "https") and bool(host) and address.port != 0
    except ValueError:
        return False


def basic_auth_of(url: str) -> str | None:
    """Return the `Authorization` header for the user name and password in a URL.

    Return None if the URL has no user name.
    """
    address = split_url(url)
    if address.username is None:
        return None
    credentials = f"{unquote(address.username)}:{unquote(address.password or '')}"
    return f"Basic {base64.b64encode(credentials.encode()).decode()}"


_PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_PROXY_NAMES = (*_PROXY_VARIABLES, *map(str.upper, _PROXY_VARIABLES))


def proxy_of(url: str) -> str | None:
    """Return the URL of the proxy that the environment variables require for a URL, or None for no proxy."""
    address = split_url(url)
    return _find_proxy(address.scheme, address.hostname or "", tuple(map(os.environ.get, _PROXY_NAMES)))


@lru_cache(maxsize=64)
def _find_proxy(scheme: str, host: str, _environment: tuple[str | None, ...]) -> str | None:
    proxies = getproxies()  # This call is slow because it reads the complete environment.
    proxy = proxies.get(scheme) or proxies.get("all")
    if not proxy or proxy_bypass(host):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if not is_http_url(proxy):
        raise TransportError(
            "The proxy address in the environment is not a valid HTTP URL. Check the environment variables "
            "`HTTP_PROXY`, `HTTPS_PROXY` and `ALL_PROXY`."
        )
    return proxy


def _proxy_credentials(proxy: str) -> dict[str, str]:
    basic_auth = basic_auth_of(proxy)
    return {"Proxy-Authorization": basic_auth} if basic_auth else {}


def tls_context() -> ssl.SSLContext:
    """Return a TLS context with the certificates of the system.

    The environment variables `SSL_CERT_FILE` and `SSL_CERT_DIR` replace these certificates.
    """
    return _tls_context(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@lru_cache(maxsize=8)
def _tls_context(_file: str | None, _folder: str | None) -> ssl.SSLContext:
    return ssl.create_default_context()


# The connection pool

_PoolKey = tuple[str, str | None]
"""The address and the proxy of a connection."""
_idle: dict[_PoolKey, deque[tuple[HTTPConnection, float]]] = {}
"""A dict that maps an address and a proxy to the idle connections, each with the time since when it is idle.

The connection that was used last is at the end.
"""


def _close_idle_connections() -> None:
    for connections in _idle.values():
        while connections:
            connections.pop()[0].close()
    _idle.clear()


atexit.register(_close_idle_connections)
# Two processes with the same connection would read each other's responses.
call_in_child(_close_idle_connections)


def _take_connection(key: _PoolKey) -> HTTPConnection | None:
    try:
        while True:
            connection, idle_since = _idle[key].pop()
            if time.monotonic() - idle_since < _IDLE_SECONDS and not _is_readable(connection.sock):
                return connection
            connection.close()
    except LookupError:  # The pool is empty, or another thread removed the last connection.
        return None


def _return_connection(key: _PoolKey, connection: HTTPConnection) -> None:
    connections = _idle.setdefault(key, deque())
    with suppress(IndexError, ValueError):  # Another thread may remove a connection at the same time.
        # `_take_connection` removes the newest connection, so this function closes the oldest connections.
        while connections:
            oldest = connections[0]
            if time.monotonic() - oldest[1] < _IDLE_SECONDS and not _is_readable(oldest[0].sock):
                break
            connections.remove(oldest)
            oldest[0].close()
    connections.append((connection, time.monotonic()))


def _is_readable(sock: socket.socket) -> bool:
    """Return True if an idle socket is readable.

    The connection is then not usable: a server sends no data on an idle connection, so the server has closed it.
    """
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        return bool(poll.poll(0))
    return bool(select.select([sock], [], [], 0)[0])


def _new_connection(post: Post, proxy: str | None) -> HTTPConnection:
    address, timeout = split_url(post.url), post.limit_timeout(post.connect_timeout)
    server = address if proxy is None else split_url(proxy)
    host, port = server.hostname or "", server.port
    if "https" not in (address.scheme, server.scheme):
        return HTTPConnection(host, port, timeout=timeout)
    connection = HTTPSConnection(host, port, timeout=timeout, context=tls_context())
    if proxy is not None and address.scheme == "https":
        connection.set_tunnel(address.hostname or "", address.port or 443, headers=_proxy_credentials(proxy))
    return connection


# Responses


class _SocketReader(io.RawIOBase):
    """A socket reader that checks the deadline of the request before every read.

    A socket timeout is not enough. It limits only one read, and a server may send its headers byte by byte.
    """

    def __init__(self, sock: socket.socket, post: Post) -> None:
        self.sock, self._post = sock, post
        self.timeout = post.read_timeout
        self.deadline = post.start_deadline
        """The deadline for the next bytes."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self.sock.settimeout(limit_timeout(self.timeout, self.deadline))
        return self.sock.recv_into(buffer)


class IncomingResponse:
    """A response with complete headers.

    Its body may still be arriving, and the caller can read it.
    """

    def __init__(self, post: Post, key: _PoolKey, connection: HTTPConnection, sock: socket.socket) -> None:
        self._key = key
        self._connection: HTTPConnection | None = connection
        self._reader = _SocketReader(sock, post)
        self._response = ResponseReader(io.BufferedReader(self._reader))
        self.status = self._response.status
        is_stream = post.is_stream and self.status < 300
        if is_stream:
            self._reader.deadline = post.deadline
        self._decoder = ContentDecoder(self.header("content-encoding"), post.max_bytes, is_stream=is_stream)

    def header(self, name: str) -> str | None:
        return self._response.headers.get(name)

    def read(self) -> bytes:
        """Return the complete body."""
        return b"".join(self.pieces())

    def pieces(self) -> Iterator[bytes]:
        """Yield the parts of the body as they arrive.

        At the end of the body, return the connection to the pool.
        """
        response, decoder = self._response, self._decoder
        try:
            while data := response.read_piece():
                yield from decoder.decode(data)
        except (OSError, HTTPException) as error:
            raise transport_error(error) from error
        decoder.finish()
        self._release()

    def finish(self) -> None:
        """Wait a short time for the end of the body, so that the connection can return to the pool.

        Call this method if the last event has arrived but the body has not ended yet. If the end does not arrive in
        time, the connection does not return to the pool.
        """
        if self._response.is_reusable:
            with suppress(OSError, HTTPException, TransportError):
                self._reader.timeout = _FINISH_SECONDS
                if not self._response.read_piece():
                    self._release()

    def _release(self) -> None:
        if self._connection is not None and self._response.is_reusable:
            self._response.close()
            _return_connection(self._key, self._connection)
            self._connection = None

    def close(self) -> None:
        """Close the response.

        If its body was not read to the end, also close the connection.
        """
        self._response.close()
        if self._connection is not None:
            self._connection.close()


# Sending


def send(post: Post) -> IncomingResponse:
    """Send a request, and return the response as soon as its headers have arrived."""
    proxy = proxy_of(post.url)
    address = split_url(post.url)
    key = (f"{address.scheme}://{address.netloc}", proxy)
    connection = _take_connection(key)
    try:
        if connection is None:
            connection = _new_connection(post, proxy)
            connection.connect()
        sock = connection.sock
        assert sock is not None
        sock.settimeout(post.limit_timeout(post.read_timeout))
        sock.sendall(_request_head(post, proxy) + post.body)
        return IncomingResponse(post, key, connection, sock)
    except BaseException as error:
        if connection is not None:
            connection.close()
        if isinstance(error, OSError | HTTPException):
            raise transport_error(error) from error
        raise


def _request_head(post: Post, proxy: str | None) -> bytes:
    """Return the request line and the headers as bytes.

    The caller sends them together with the body in one packet. The standard library would send two packets.
    """
    address = split_url(post.url)
    target = quote((address.path or "/") + (f"?{address.query}" if address.query else ""), safe=punctuation)
    headers = {"Host": address.netloc.rpartition("@")[2], "Accept-Encoding": "identity", **post.headers}
    if proxy is not None and address.scheme != "https":
        target, headers = quote(post.url, safe=punctuation), {**headers, **_proxy_credentials(proxy)}
    lines = [f"POST {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    lines.append(f"Content-Length: {len(post.body)}")
    if any("\r" in line or "\n" in line or not line.isascii() for line in lines):
        raise TransportError(
            "A header or the address contains a line break or a non-ASCII character, which HTTP does not allow. Check "
            "`headers`, `api_key` and `api_base` in the model dict."
        )
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def transport_error(error: Exception) -> TransportError:
    """Convert an exception of a library because of which the complete response did not arrive."""
    if isinstance(error, TimeoutError):
        return ResponseTimeoutError("The server sent no data before the timeout.")
    return TransportError(str(error) or type(error).__name__)
