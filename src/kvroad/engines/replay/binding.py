"""NIXL's Python binding: which one is there, and an agent with the options we need."""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import importlib.util
import re
import sys
import types
from pathlib import Path
from typing import Any

__all__ = ["NoNixl", "load_nixl", "make_agent", "nixl_errors", "probe", "versions"]

PACKAGES = ("nixl_cu13", "nixl_cu12", "nixl")


class NoNixl(Exception):
    """No binding of NIXL can be imported here."""


def load_nixl() -> types.ModuleType:
    """Return the ``_api`` module of the first binding that imports.

    NIXL 1.3 imports torch for a type check alone; where torch is absent a stub module
    stands in for it.
    """
    reasons = []
    for name in PACKAGES:
        if importlib.util.find_spec(name) is None:
            reasons.append(f"{name} is not installed")
            continue
        try:
            return _import_api(name)
        except ImportError as error:
            reasons.append(f"{name}: {error}")
    raise NoNixl(
        f"NIXL cannot be imported by {sys.executable}: {'; '.join(reasons)}. "
        "Install one: pip install --no-deps nixl-cu13 && pip install numpy"
    )


def _import_api(name: str) -> types.ModuleType:
    try:
        return importlib.import_module(f"{name}._api")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
    stub: Any = types.ModuleType("torch")
    stub.Tensor = type("Tensor", (), {})
    sys.modules["torch"] = stub
    return importlib.import_module(f"{name}._api")


class _Bindings:
    """The compiled binding with a progress delay of our choice.

    The Python layer fixes the delay to 0, which keeps one core per agent busy for ever.
    """

    def __init__(self, real: Any, delay_us: int) -> None:
        self._real = real
        self._delay_us = delay_us

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def nixlAgent(self, name: str, config: Any) -> Any:  # noqa: N802 (NIXL's name)
        config.pthrDelay = self._delay_us
        return self._real.nixlAgent(name, config)


def make_agent(name: str, num_threads: int, progress_delay_us: int) -> Any:
    """Return a NIXL agent with the UCX backend and telemetry."""
    api: Any = load_nixl()
    if progress_delay_us:
        api.nixlBind = _Bindings(api.nixlBind, progress_delay_us)
    config = api.nixl_agent_config(
        enable_prog_thread=True,
        capture_telemetry=True,
        num_threads=num_threads,
        backends=["UCX"],
    )
    return api.nixl_agent(name, config)


def nixl_errors() -> tuple[type[Exception], ...]:
    """Return the exception types of the compiled binding; they share no base class."""
    api: Any = load_nixl()
    members = vars(sys.modules[api.nixlBind.nixlAgent.__module__]).values()
    return tuple(m for m in members if isinstance(m, type) and issubclass(m, Exception))


def versions() -> dict[str, str | None]:
    """Return versions of Python and NIXL and the UCX library mapped into this process."""
    package = load_nixl().__name__.split(".", maxsplit=1)[0]
    return {
        "python": sys.version.split()[0],
        "nixl_package": package,
        "nixl": _version(package.replace("_", "-")),
        "numpy": _version("numpy"),
        "ucx": _ucx_version(),
        "ucx_library": _mapped("libucp"),
    }


_probed: list[Any] = []


def probe() -> dict[str, str | None]:
    """Return the versions once an agent with the UCX backend has started, or its ``error``."""
    try:
        errors = nixl_errors()
        # Kept until the process ends: where the host's RDMA libraries clash with those that
        # NIXL carries, an agent's end is the end of its process.
        _probed.append(make_agent("probe", 0, 1000))
        found = versions()
    except NoNixl as error:
        return {"error": str(error)}
    except errors as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {**found, "error": None}


def _ucx_version() -> str | None:
    path = _mapped("libucp")
    if path is None:
        return None
    library = ctypes.CDLL(path)
    library.ucp_get_version_string.restype = ctypes.c_char_p
    return str(library.ucp_get_version_string().decode())


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _mapped(stem: str) -> str | None:
    maps = Path("/proc/self/maps").read_text()
    found = re.search(rf"\s(/\S*/{stem}[-.]\S*)", maps)
    return found.group(1) if found else None
