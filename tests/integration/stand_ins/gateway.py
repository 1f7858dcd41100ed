"""A stand-in for the gateway: ready at once, one model, one streamed answer. Standard library only."""

import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self._reply("application/json", json.dumps({"workers": {"toy": 1}}).encode())

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        pieces = [{"choices": [{"index": 0, "delta": {"content": text}}]} for text in ("It ", "carries ", "water.")]
        lines = [f"data: {json.dumps(piece)}\n\n" for piece in pieces]
        self._reply("text/event-stream", "".join([*lines, "data: [DONE]\n\n"]).encode())

    def _reply(self, kind, body):
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format, *args):
        pass


signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
ThreadingHTTPServer((os.environ["HEADRACE_HOST"], int(os.environ["HEADRACE_PORT"])), Handler).serve_forever()
