"""A loopback server that answers every POST with the same small JSON, for the floor of the loop's benchmark."""

from __future__ import annotations

import socket
import threading

BODY = (
    b'{"id":"x","object":"chat.completion","model":"m","choices":[{"index":0,"message":{"role":"assistant",'
    b'"content":"","tool_calls":[{"id":"call_1","type":"function","function":{"name":"look","arguments":"{\\"place\\":\\"here\\"}"}}]},'
    b'"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}'
)
FINISH = BODY.replace(b"look", b"__finish__").replace(b"place", b"answer")
RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
LAST = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(FINISH), FINISH)


def serve(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with connection:
        buffer = b""
        while chunk := connection.recv(65536):
            buffer += chunk
            while b"\r\n\r\n" in buffer:
                head, _, rest = buffer.partition(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
                if len(rest) < length:
                    break
                is_forced = b'"tool_choice"' in rest[:length]
                buffer = rest[length:]
                connection.sendall(LAST if is_forced else RESPONSE)


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()


if __name__ == "__main__":
    main()
