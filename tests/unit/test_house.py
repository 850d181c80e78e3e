"""What holds of the package as a whole: few rooms, short files, typed records, nouns."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "src/kvroad"
MODULES = {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}
MOST_ENTRIES = 18
MOST_LINES = 400
# Raw JSON at the edges: what a plan, an agent's event or a settings file holds.
MOST_UNTYPED = 60
# Prepositions and participles that say nothing of what they name.
EMPTY_NAMES = {"with_", "told", "asked", "own", "one"}


def annotations(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            taken = node.args
            given = [*taken.posonlyargs, *taken.args, *taken.kwonlyargs, taken.vararg, taken.kwarg]
            hints = [arg.annotation for arg in given if arg] + [node.returns]
        elif isinstance(node, ast.AnnAssign):
            hints = [node.annotation]
        else:
            continue
        yield from (ast.unparse(hint) for hint in hints if hint)


def identifiers(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def test_the_package_has_few_rooms():
    entries = [path.name for path in PACKAGE.iterdir() if path.name != "__pycache__"]
    assert len(entries) <= MOST_ENTRIES, sorted(entries)


def test_no_file_is_long():
    folders = ("src", "workflow", "benchmarks", "tools", "tests")
    files = [path for name in folders for path in (REPOSITORY / name).rglob("*.py")]
    long = {
        str(path.relative_to(REPOSITORY)): lines
        for path in files
        if (lines := path.read_text().count("\n")) > MOST_LINES
    }
    assert not long


def test_no_class_name_means_two_things():
    places: dict[str, list[str]] = defaultdict(list)
    for path, tree in MODULES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(PACKAGE)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_dicts_that_cross_a_module_are_types():
    untyped = [
        f"{path.relative_to(PACKAGE)}: {hint}"
        for path, tree in MODULES.items()
        for hint in annotations(tree)
        if re.search(r"\b(dict|Mapping)\[str, Any\]", hint)
    ]
    assert len(untyped) <= MOST_UNTYPED, "\n".join([f"{len(untyped)}:", *untyped])


def test_names_are_nouns():
    found = {
        f"{path.relative_to(PACKAGE)}: {name}"
        for path, tree in MODULES.items()
        for name in identifiers(tree)
        if name in EMPTY_NAMES
    }
    assert found == set()
