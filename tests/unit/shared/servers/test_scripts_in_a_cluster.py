"""Scripts publish to the shard's channel on a Cluster, and to nothing else."""

from __future__ import annotations

import re
from importlib import resources

import pytest

from shared.redis_client import script_text

NAMES = sorted(
    path.name.removesuffix(".lua")
    for path in (resources.files("shared") / "lua").iterdir()
    if path.name.endswith(".lua")
)


@pytest.mark.parametrize("name", NAMES)
def test_a_script_publishes_to_shards_on_a_cluster_only(name: str) -> None:
    plain, sharded = script_text(name), script_text(name, is_sharded=True)
    assert re.findall(r"call\('(\w*PUBLISH)'", sharded) == ["SPUBLISH"] * plain.count("call('PUBLISH'")
    assert plain.count("PUBLISH'") == plain.count("call('PUBLISH'")
