"""Make the docs' screenshots: `uv run python docs/screenshots.py [reports] [mlflow]`.

Needs Chromium. Reports are those of `reports/published/`; MLflow's pages show the published study
`h200_nvlink`, which is logged to a database of its own first (about two minutes).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import quote

from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parent.parent
PUBLISHED = ROOT / "reports" / "published"
IMAGES = ROOT / "docs" / "images"
STUDIES = ("loopback", "h200_nvlink", "h200_regions", "h200_serving")
STUDY = "h200_nvlink"
PARTS = ("Snakefile", "conf", "profiles", "src", "workflow")
LIMIT = 300_000


def save(shot: bytes, name: str) -> None:
    """Write a picture of at most ``LIMIT`` bytes: fewer colours until it fits."""
    IMAGES.mkdir(exist_ok=True)
    path = IMAGES / f"{name}.png"
    picture = Image.open(BytesIO(shot)).convert("RGB")
    for colours in (256, 128, 64, 32):
        picture.quantize(colours, dither=Image.Dither.NONE).save(path, optimize=True)
        if path.stat().st_size <= LIMIT:
            break
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")


def shoot_reports(browser: Any) -> None:
    """Show the head of each report in both themes, and one at the width of a phone."""
    for study in STUDIES:
        url = (PUBLISHED / study / "index.html").as_uri()
        for scheme, width in (("light", 1100), ("dark", 1100), ("light", 390)):
            is_phone = width < 500
            if is_phone and study != STUDY:
                continue
            size = {"width": width, "height": 1100 if is_phone else 1500}
            page = browser.new_page(viewport=size, color_scheme=scheme)
            page.goto(url)
            save(page.screenshot(), f"report_{study}_{'phone' if is_phone else scheme}")
            page.close()


def shoot_mlflow(browser: Any) -> None:
    """Show the runs table by its shared view, and the compare page of one block."""
    from mlflow import MlflowClient

    with tempfile.TemporaryDirectory(prefix="kvroad-screenshots-") as name:
        folder = Path(name)
        log_study(folder)
        with server(folder) as uri:
            client = MlflowClient(uri)
            number = client.get_experiment_by_name(STUDY).experiment_id
            size = {"width": 1500, "height": 800}
            page = browser.new_page(viewport=size)
            page.goto(f"{uri}/#/experiments/{number}/runs?viewStateShareKey=arms")
            page.get_by_text("60 matching runs").wait_for(timeout=60_000)
            dismiss_assistant(page)
            page.wait_for_timeout(2000)
            save(page.screenshot(), "mlflow_runs")
            where = "tags.`kvroad.kind` = 'cell' and params.block = '0'"
            ids = [run.info.run_id for run in client.search_runs([number], where)]
            words = f"runs={quote(json.dumps(ids))}&experiments={quote(json.dumps([number]))}"
            page.goto(f"{uri}/#/compare-runs?{words}")
            page.locator(".js-plotly-plot svg").first.wait_for(timeout=60_000)
            page.wait_for_timeout(2000)
            save(page.screenshot(), "mlflow_compare")


def dismiss_assistant(page: Any) -> None:
    """Close the panel that MLflow opens beside its pages."""
    panel = page.get_by_role("button", name="Close")
    if panel.count():
        panel.first.click()


def log_study(folder: Path) -> None:
    """Lay down a copy of the tree, and let the workflow log the published study from raw files."""
    for part in PARTS:
        source = ROOT / part
        (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / part)
    raw = PUBLISHED / STUDY / "raw.tar.xz"
    subprocess.run(["tar", "-xJf", str(raw), "-C", str(folder)], check=True)
    kept = {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI"}
    command = ["-m", "snakemake", "--cores", "1", "all", "--config", f"study={STUDY}"]
    environment = {**kept, "PYTHONPATH": str(folder / "src")}
    subprocess.run([sys.executable, *command], cwd=folder, check=True, env=environment)


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """Serve the folder's database on loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    process = subprocess.Popen(
        [sys.executable, *words, "--backend-store-uri", "sqlite:///mlflow.db"],
        cwd=folder,
        env={**os.environ, **quiet},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    uri = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"{uri}/health", timeout=2).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    sys.exit("error: the MLflow server does not answer")
                time.sleep(0.3)
        yield uri
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


def main(chosen: list[str]) -> None:
    """Make all, or those that are named."""
    makers = {"reports": shoot_reports, "mlflow": shoot_mlflow}
    if unknown := [name for name in chosen if name not in makers]:
        sys.exit(f"error: {unknown[0]!r} is none of {', '.join(makers)}")
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next((path for name in names if (path := shutil.which(name))), None)
    if program is None:
        sys.exit("error: no Chromium here; apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for name in chosen or makers:
            makers[name](browser)
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
