"""A hash-model worker that hands over, as a process of its own: its first line is its port.

Arguments: its name, how long its leases last, and what it waits for before going on, or nothing:
`layer` after the first one is written, `pull` before it copies.
"""

import asyncio
import sys

import uvloop
from handover_pair import side


async def main(name: str, lease_seconds: float, waits_for: str) -> None:
    async with side(name, lease_seconds=lease_seconds) as worker:
        if waits_for == "layer":
            worker.model.may_write.clear()
        if waits_for == "pull":
            worker.transport.may_pull.clear()
        sys.stdout.write(f"{worker.live.port}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], float(sys.argv[2]), sys.argv[3]))
