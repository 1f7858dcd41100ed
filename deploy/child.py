"""The few lines between the launcher and a child: a child must not outlive its parent, even one killed by force.

Run as `python -I -S child.py PARENT_PID SIGNAL PROGRAM [ARGUMENT...]`: asks the kernel to send SIGNAL when the
parent ends, then becomes PROGRAM (same pid). Standard library only, and imported by nobody: it must start fast.
Outside Linux there is no such request; the program then runs without it.
"""

from __future__ import annotations

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def become(parent_pid: int, death_signal: int, argv: list[str]) -> None:
    """Never returns. Exits with 143 when the parent was gone before the request could be made."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
        if os.getppid() != parent_pid:
            sys.exit(143)
    os.execv(argv[0], argv)


if __name__ == "__main__":
    become(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
