"""Writes the five dashboards for Grafana to provision: `python -m deploy.observability.dashboards [folder]`.

The files are kept in git, and a test holds them to this: change a panel here, run it, commit both.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from deploy.observability.machinery import QUEUE, REDIS, WORKERS
from deploy.observability.traffic import ONE_CLASS, OVERVIEW

DASHBOARDS = (OVERVIEW, QUEUE, WORKERS, ONE_CLASS, REDIS)
FOLDER = Path(__file__).parent / "grafana" / "dashboards"


def written() -> dict[str, str]:
    """Name of the file -> what is in it."""
    return {f"{each.uid}.json": json.dumps(each.json(), indent=1) + "\n" for each in DASHBOARDS}


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    for name, text in written().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
