"""One TLS context for all connections with the same certificates.

redis-py makes one for each connection, which holds the event loop up for 50 ms while it reads the system's authorities,
and believes those beside the one it is given. Here only the given one is believed. Files that have changed are read
again at the next connection: certificates are renewed under a running process.
"""

from __future__ import annotations

import functools
import os
import ssl
from typing import Any

from redis.asyncio.connection import RedisSSLContext


def context_of(asked: RedisSSLContext) -> ssl.SSLContext:
    """What these options mean. Raises OSError (SSLError is one) for files that cannot be read."""
    files = (asked.ca_certs, asked.certfile, asked.keyfile)
    versions = tuple(os.stat(file).st_mtime_ns if file else 0 for file in files)
    mode = ssl.VerifyMode(asked.cert_reqs)
    return _context(files, versions, mode, bool(asked.check_hostname))


@functools.lru_cache(maxsize=8)
def _context(files: tuple[Any, ...], versions: tuple[int, ...], mode: ssl.VerifyMode, has_name: bool) -> ssl.SSLContext:
    ca_file, certificate, key = files
    context = ssl.create_default_context(cafile=ca_file)
    context.check_hostname = has_name
    context.verify_mode = mode
    if certificate or key:
        context.load_cert_chain(certificate, key)
    return context
