"""Headless Chromium. A page fetches its jobs from this process over loopback HTTP, and posts its reports back."""

from __future__ import annotations

import contextlib
import http.server
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

HERE = Path(__file__).resolve().parent
FILES = {
    "/": ("text/html", HERE / "page.html"),
    "/client.mjs": ("text/javascript", HERE.parent / "web" / "client.mjs"),
}
# The browser fetches nothing but the page and stores nothing.
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-breakpad",
    "--no-first-run",
    "--no-proxy-server",
    "--ignore-certificate-errors",
]

JOBS: queue.Queue[str] = queue.Queue()


class Page(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status: int, kind: str = "text/plain", body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path == "/job":
            try:
                self.answer(200, body=JOBS.get(timeout=10).encode())
            except queue.Empty:
                self.answer(204)
        elif self.path in FILES:
            kind, path = FILES[self.path]
            self.answer(200, kind, path.read_bytes())
        else:
            self.answer(404)

    def do_POST(self) -> None:
        report = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(200)
        print(report.decode(), flush=True)

    def log_message(self, *_: object) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """The browser drops connections when it ends."""


def watch(browser: subprocess.Popen[bytes], ending: threading.Event) -> None:
    """Ends this process when the browser ends by itself, so that nothing waits for a report."""
    status = browser.wait()
    if not ending.is_set():
        print(f"the browser has ended with status {status}", file=sys.stderr, flush=True)
        os._exit(1)


def main() -> None:
    server = Server(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory(prefix="interop-chromium-", ignore_cleanup_errors=True) as profile:
        uri = f"http://127.0.0.1:{server.server_port}/"
        browser = subprocess.Popen(
            [os.environ["INTEROP_CHROMIUM"], *FLAGS, f"--user-data-dir={profile}", uri],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        ending = threading.Event()
        threading.Thread(target=watch, args=(browser, ending), daemon=True).start()
        for line in sys.stdin:
            JOBS.put(line.strip())
        ending.set()
        with contextlib.suppress(ProcessLookupError):
            browser.send_signal(signal.SIGTERM)
        try:
            browser.wait(5)
        except subprocess.TimeoutExpired:
            browser.kill()
            browser.wait()


if __name__ == "__main__":
    main()
