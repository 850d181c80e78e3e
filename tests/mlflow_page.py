"""The searches of docs/mlflow.md, read from the page."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "mlflow.md"
_SEARCH = re.compile(
    r"### (\d)\. (.+?)\n\n```search\nfilter: (.+?)\norder: (.+?)\n```", flags=re.DOTALL
)


@dataclass(frozen=True)
class Search:
    """One documented search."""

    question: str
    where: str
    order: str

    def run(self, client, experiments: list[str]):
        """Return the runs that MLflow finds, over all pages."""
        ids = [client.get_experiment_by_name(name).experiment_id for name in experiments]
        found, token = [], None
        while True:
            page = client.search_runs(
                ids, self.where, order_by=[self.order], page_token=token, max_results=100
            )
            found += page
            token = page.token
            if not token:
                return found


def searches() -> dict[int, Search]:
    """Return the searches of the page by their number."""
    found = _SEARCH.findall(PAGE.read_text(encoding="utf-8"))
    return {int(n): Search(question, where, order) for n, question, where, order in found}
