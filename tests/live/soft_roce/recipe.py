"""What is in the guest: packages, files and services. A change here makes a new image."""

from __future__ import annotations

import hashlib
import json

SUITE = "bookworm"
MIRROR = "http://deb.debian.org/debian"
NIXL = "nixl-cu12==1.5.1"
PYTHON = "3.11"  # of the suite; the wheel must be for it
WHEEL_PLATFORM = "manylinux_2_28_x86_64"
IMAGE_SIZE = "4G"
INCLUDE = (
    "linux-image-amd64",
    "systemd-sysv",
    "openssh-server",
    "python3",
    "python3-numpy",
    "python3-venv",
    "iproute2",
    "kmod",
    "udev",
    "procps",
    "rdma-core",
    "ibverbs-providers",
    "ibverbs-utils",
)

VENV = "/opt/kvroad/venv"
VENV_WHEEL = "/opt/kvroad/venv-wheel"
SYSTEM_LIBRARIES = "/usr/lib/x86_64-linux-gnu"
# The wheel's own copies have mangled names and know no rxe; the system's libraries do.
REPLACED = {"libibverbs-*.so*": "libibverbs.so.1", "libmlx5-*.so*": "libmlx5.so.1"}

FILES = {
    "/etc/hostname": "soft-roce\n",
    "/etc/hosts": "127.0.0.1 localhost soft-roce\n::1 localhost\n",
    "/etc/systemd/network/eth0.network": "[Match]\nName=eth0\n\n[Network]\nDHCP=yes\n",
    # NIXL registers its pools with the NIC, which pins them.
    "/etc/security/limits.d/memlock.conf": "* - memlock unlimited\nroot - memlock unlimited\n",
    "/etc/ssh/sshd_config.d/rig.conf": "PasswordAuthentication no\nUseDNS no\n",
    "/etc/systemd/system/soft-roce.service": """\
[Unit]
Description=RoCE in software on eth0
Wants=network-online.target
After=network-online.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/sbin/modprobe rdma_rxe
ExecStart=/bin/sh -c 'test -e /sys/class/infiniband/rxe0 || rdma link add rxe0 type rxe netdev eth0'

[Install]
WantedBy=multi-user.target
""",
}
ENABLED = ("systemd-networkd", "systemd-networkd-wait-online", "ssh", "soft-roce")
# Nothing of use to a guest that lives for an hour, and slow under emulation.
MASKED = (
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
)


def digest() -> str:
    """Return a digest of everything above, so that a stale image is known."""
    values = {name: value for name, value in sorted(globals().items()) if name.isupper()}
    values.pop("MIRROR")
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:12]
