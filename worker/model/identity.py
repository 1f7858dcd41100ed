"""What a model is called: the name that clients use, and the revision that workers share.

A revision names bytes: model name and a digest of weights, configuration, tokenizer and template, so that two workers
under one revision give the same answers. No torch here.
"""

from __future__ import annotations

import hashlib
import re


def revision_of(name: str, *parts: str) -> str:
    """`parts` are digests, and whatever else keeps two workers from giving one answer."""
    digest = hashlib.blake2b(" ".join(parts).encode(), digest_size=6).hexdigest()
    return f"{name}@{digest}"


def clean_name(name: str) -> str:
    """A name as Redis keys and URLs carry it."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-") or "model"
