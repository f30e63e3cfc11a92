"""One subject under one fault of its cable; prints what it did as JSON.

    unshare --net --mount python -m tests.cables SUBJECT FAULT SECONDS LOCK_S

It needs a network and mounts of its own. SECONDS is the length of the fault, LOCK_S that of a lock
of the entity.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import asdict

from tests.cables.forwarder import FAR, OTHER
from tests.cables.names import Names, use_own_names
from tests.cables.subjects import SUBJECTS
from tests.cables.world import FAULTS, PRIMARY_HOST, SECONDARY_HOST, World, part


def main() -> None:
    subject, fault = SUBJECTS[sys.argv[1]], FAULTS[sys.argv[2]]
    fault_s, lock_s = map(float, sys.argv[3:])
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    use_own_names()
    names = Names({PRIMARY_HOST: FAR, SECONDARY_HOST: OTHER})
    with ExitStack() as stack:
        python = (sys.executable, "-m")
        clocks = (str(ahead_s) for ahead_s in fault.ahead_s)
        far_end = ("unshare", "--net", *python, "tests.cables.far", str(lock_s), *clocks)
        far = stack.enter_context(part(*far_end))
        cable = stack.enter_context(part(*python, "tests.cables.forwarder", str(far.pid)))
        world = World(cable, names, fault, fault_s, lock_s)
        asyncio.run(subject(world))
    found = asdict(world.result)
    shown = {name: value for name, value in found.items() if not isinstance(value, set)}
    sys.stdout.write(json.dumps(shown) + "\n")


if __name__ == "__main__":
    main()
