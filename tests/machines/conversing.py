"""A rank that opens a channel; run by several processes in ``test_processes.py``.

The leader sends a message every 10 ms and prints when all have answered the first. Others carry
them out. Whoever loses the group prints why, and ends with 3.
"""

from __future__ import annotations

import os
import sys
import time

from mlxgen.errors import MachineError
from mlxgen.machines.channel import Channel
from mlxgen.machines.group import Group


def main() -> None:
    group = Group.join()
    assert group is not None
    channel = Channel.open(group, patience=float(sys.argv[1]))

    def lost(error: MachineError) -> None:
        print(error, flush=True)
        os._exit(3)

    channel.on_loss(lost)
    if group.leads:
        channel.send(b"start")
        group.exchange("ready")
        print("started", flush=True)
        while True:
            time.sleep(0.01)
            channel.send(b"a step")
    channel.receive()
    group.exchange("ready")
    while channel.receive() is not None:
        pass


if __name__ == "__main__":
    main()
