"""A stand-in for the worker: says what it was given, then waits to be told to drain. Argument `fail`: dies at once."""

import json
import os
import signal
import sys


def log(event, **fields):
    print(json.dumps({"ts": 0, "level": "info", "event": event, **fields}), flush=True)


def drain(*_):
    log("drained")
    sys.exit(0)


signal.signal(signal.SIGTERM, drain)
log("model_loaded", model=os.environ["HEADRACE_MODEL"], redis_url=os.environ["HEADRACE_REDIS_URL"])
if "fail" in sys.argv:
    print("RuntimeError: the weights are not what the header says", file=sys.stderr)
    sys.exit(3)
while True:
    signal.pause()
