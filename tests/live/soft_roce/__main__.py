"""A RoCE host without RDMA hardware: ``python3 tests/live/soft_roce build | boot | stop``."""

from __future__ import annotations

import argparse
import sys

import recipe
from guest import boot, stop
from image import build
from rig import Rig, RigError


def main() -> int:
    """Run one command; what a user can mend is one line and exit status 1."""
    parser = argparse.ArgumentParser(prog="soft_roce", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build", help="make the disk image; as root, minutes")
    building.add_argument("--mirror", default=recipe.MIRROR, help="Debian mirror (%(default)s)")
    booting = commands.add_parser("boot", help="start the guest and wait until RoCE is up")
    booting.add_argument("--port", type=int, help="of 127.0.0.1, for SSH; 0: any that is free")
    booting.add_argument("--memory-mib", type=int, default=3072)
    commands.add_parser("stop", help="shut the guest down")
    arguments = parser.parse_args()
    rig = Rig.from_environment()
    try:
        with rig.locked():
            if arguments.command == "build":
                build(rig, arguments.mirror)
            elif arguments.command == "boot":
                boot(rig, arguments.port, arguments.memory_mib)
            else:
                stop(rig)
    except RigError as error:
        print(f"soft_roce: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
