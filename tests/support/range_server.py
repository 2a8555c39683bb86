"""An HTTP server on loopback that counts bytes and can misbehave."""

from __future__ import annotations

import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class RangeServer:
    """Serves `files` (name to bytes) and keeps account.

    Attributes
    ----------
    requests : list of (method, name, start, stop)
        What was asked for; a request without a range has start and stop None.
    queries : list of (name, str)
        What stood behind the question mark.
    sent : int
        Bytes of all bodies.
    ranges, sizes : bool
        Whether the server answers ranges, and says how large a file is.
    failures, refusals : int
        How many of the next range requests, or of the next other requests, fail.
    status : int
        What they fail with, 503 at first.
    short : int
        How many of the next range requests lose their last byte.
    password : str or None
        The Authorization header it wants.
    """

    def __init__(self):
        self.files = {}
        self.requests = []
        self.headers = []
        self.queries = []
        self.sent = 0
        self.ranges = self.sizes = True
        self.failures = self.refusals = self.short = 0
        self.status = 503
        self.password = None
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_HEAD(self):
                outer._answer(self, head=True)

            def do_GET(self):
                outer._answer(self, head=False)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def url(self, name):
        return f"http://127.0.0.1:{self._server.server_port}/{name}"

    def reset(self):
        with self._lock:
            self.requests.clear()
            self.headers.clear()
            self.sent = 0

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _take(self, what):
        with self._lock:
            left = getattr(self, what)
            setattr(self, what, max(0, left - 1))
            return left > 0

    def _answer(self, request, head):
        name, _, query = request.path.partition("?")
        name = name.lstrip("/")
        body = self.files.get(name)
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("Range", ""))
        start, stop = (int(match[1]), int(match[2]) + 1) if match else (None, None)
        with self._lock:
            self.requests.append(("HEAD" if head else "GET", name, start, stop))
            self.headers.append(dict(request.headers))
            self.queries.append((name, query))
        if self.password is not None and request.headers.get("Authorization") != self.password:
            return self._send(request, 401, b"", head)
        if body is None:
            return self._send(request, 404, b"", head)
        if self._take("failures" if match and not head else "refusals"):
            return self._send(request, self.status, b"busy", head)
        if match and self.ranges and not head:
            part = body[start:stop]
            if stop - start > 1 and self._take("short"):
                part = part[:-1]
            return self._send(request, 206, part, head, f"bytes {start}-{start + len(part) - 1}/{len(body)}")
        return self._send(request, 200, body, head)

    def _send(self, request, status, body, head, content_range=None):
        request.send_response(status)
        if self.sizes or content_range:
            request.send_header("Content-Length", str(len(body)))
        else:
            request.send_header("Connection", "close")
        if content_range:
            request.send_header("Content-Range", content_range)
        request.end_headers()
        if not head:
            with self._lock:
                self.sent += len(body)
            request.wfile.write(body)
        if not (self.sizes or content_range):
            request.close_connection = True
