"""The names that UCX takes in ``UCX_TLS``."""

from __future__ import annotations

from kvroad.errors import UserError, nearest

__all__ = ["UCX_ALIASES", "UCX_TRANSPORTS", "check_ucx_tls", "sees_cuda"]

# Names and aliases that UCX 1.23 takes in UCX_TLS (tests compare them with the library's own).
# fmt: off
UCX_TRANSPORTS = frozenset({
    "self", "tcp", "posix", "sysv", "xpmem", "knem", "cma",
    "rc_verbs", "rc_mlx5", "rc_gda", "dc_mlx5", "ud_verbs", "ud_mlx5", "gga_mlx5", "srd",
    "cuda_copy", "cuda_ipc", "gdr_copy", "rocm_copy", "rocm_ipc", "rocm_gdr",
    "ze_copy", "ze_ipc", "ze_gdr", "gaudi_gdr", "ugni_smsg", "ugni_udt", "ugni_rdma",
})
UCX_ALIASES = frozenset({
    "all", "mm", "sm", "shm", "ib", "ud", "ud_v", "ud_x", "rc", "rc_v", "rc_x", "dc", "dc_x",
    "gga", "ugni", "cuda", "rocm", "ze",
})
# fmt: on


def check_ucx_tls(entries: list[str], where: str) -> None:
    r"""Refuse what UCX would only warn of: an empty list or a transport that does not exist.

    A leading ``^`` in the first entry negates the list, ``\`` before a name rules out its alias.
    """
    if not entries:
        raise UserError(f"{where} is empty: name at least one UCX transport, such as [cma,tcp]")
    for index, entry in enumerate(entries):
        name = entry.removeprefix("^") if index == 0 else entry
        known = UCX_TRANSPORTS | UCX_ALIASES
        if name.startswith("\\"):
            name, known = name[1:], UCX_TRANSPORTS
        if (name := name.removesuffix(":aux")) not in known:
            words = sorted(known)
            raise UserError(
                f"{where}: {entry!r} is not a UCX transport{nearest(name, words)} "
                f"(allowed: {', '.join(words)})"
            )


def sees_cuda(entries: list[str]) -> bool:
    """Return whether UCX can move GPU memory with these entries."""
    names = {entry.lstrip("^\\").removesuffix(":aux") for entry in entries}
    if entries[0].startswith("^"):
        return not names & {"cuda", "cuda_copy"}
    return bool(names & {"all", "cuda", "cuda_copy"})
