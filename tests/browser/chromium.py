"""Where this machine's Chromium is."""

import shutil

NO_CHROMIUM = "no Chromium on this machine: .ci/install_servers installs it"
_NAMES = ("chromium", "chromium-browser", "google-chrome")


def program() -> str | None:
    return next((path for name in _NAMES if (path := shutil.which(name))), None)
