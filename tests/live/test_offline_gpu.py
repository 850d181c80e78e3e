"""The pack for a GPU host without a network, on small made-up wheels."""

import importlib
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kvroad.study.compose import read_model

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture
def packing(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(TOOLS))
    return importlib.import_module("offline_pack")


@pytest.fixture
def unpacking(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(TOOLS))
    return importlib.import_module("offline_gpu")


def make_wheel(
    folder: Path, name: str, members: dict[str, bytes], requires: tuple[str, ...] = ()
) -> Path:
    lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0"]
    lines += [f"Requires-Dist: {text}" for text in requires]
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in members.items():
            archive.writestr(member, data)
        archive.writestr(f"{name}-1.0.dist-info/METADATA", "\n".join(lines) + "\n")
    return path


def make_pack(packing: ModuleType, folder: Path, wheels: list[Path]) -> dict[str, Any]:
    read = [packing.read_wheel(path) for path in wheels]
    (folder / "slim").mkdir(parents=True)
    slims = [packing.slim(wheel, folder / "slim" / wheel.path.name) for wheel in read]
    manifest = {"format": 1, "python": "3.12", "machine": "x86_64", "given": {}}
    manifest["parts"] = packing.write_parts(slims, folder, 4096)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return manifest


@pytest.fixture
def wheels(tmp_path: Path) -> list[Path]:
    program = zipfile.ZipInfo("tool/run")
    program.external_attr = 0o755 << 16
    one = make_wheel(
        tmp_path / "wheels",
        "tool",
        {
            "tool/__init__.py": b"VALUE = 7\n",
            "tool/large.so": b"code" * (1 << 19),
            "tool/data.bin": bytes(range(256)) * 40,
            "tool-1.0.data/purelib/extra.py": b"VALUE = 8\n",
            "tool-1.0.data/scripts/tool": b"#!python\n",
        },
    )
    with zipfile.ZipFile(one, "a") as archive:
        archive.writestr(program, b"#!/bin/sh\n")
    return [one, make_wheel(tmp_path / "wheels", "other", {"other.py": b"import tool\n"})]


def test_a_slim_wheel_is_a_wheel_without_the_dropped_members(
    packing: ModuleType, wheels: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(packing.DROPPED, "tool", ("*.bin",))
    copy = packing.slim(packing.read_wheel(wheels[0]), tmp_path / "slim.whl")
    with zipfile.ZipFile(wheels[0]) as before, zipfile.ZipFile(copy) as after:
        assert after.testzip() is None
        assert set(before.namelist()) - set(after.namelist()) == {"tool/data.bin"}
        assert after.read("tool/large.so") == before.read("tool/large.so")
        assert after.getinfo("tool/large.so").compress_type == zipfile.ZIP_LZMA
        assert after.getinfo("tool/__init__.py").compress_type == zipfile.ZIP_DEFLATED
        assert after.getinfo("tool/run").external_attr == 0o755 << 16


def test_a_pattern_that_drops_nothing_is_refused(
    packing: ModuleType, wheels: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(packing.DROPPED, "tool", ("*.bin", "tool/gone.so"))
    with pytest.raises(SystemExit, match=r"has no member tool/gone\.so"):
        packing.slim(packing.read_wheel(wheels[0]), tmp_path / "slim.whl")


def test_parts_become_an_environment(
    packing: ModuleType,
    unpacking: ModuleType,
    wheels: list[Path],
    tmp_path: Path,
) -> None:
    manifest = make_pack(packing, tmp_path / "pack", wheels)
    assert len(manifest["parts"]) > 1
    assert {part["bytes"] for part in manifest["parts"][:-1]} == {4096}
    assert make_pack(packing, tmp_path / "again", wheels) == manifest
    target = tmp_path / "it's here"
    unpacking.unpack(tmp_path / "pack", target, only_files=True)
    site = target / "lib" / "python3.12" / "site-packages"
    assert (site / "tool" / "large.so").read_bytes() == b"code" * (1 << 19)
    assert (site / "tool" / "run").stat().st_mode & 0o111
    assert not (site / "tool-1.0.data").exists()
    assert {p.name for p in target.iterdir()} == {
        *("bin", "lib", "unpacked.json", "offline_model.py")
    }
    question = "import extra, other, tool, importlib.metadata as m; "
    question += "print(tool.VALUE, extra.VALUE, m.version('tool'))"
    words = [target / "bin" / "python", "-c", question]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == "7 8 1.0\n"
    # Its own folder is written anew; a folder of something else is left alone.
    unpacking.unpack(tmp_path / "pack", target, only_files=True)
    with pytest.raises(SystemExit, match="is not empty"):
        unpacking.unpack(tmp_path / "pack", tmp_path, only_files=True)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda p: p.write_bytes(b"x" + p.read_bytes()[1:]), "part-01 is not the part"),
        (lambda p: p.write_bytes(p.read_bytes()[:-9]), r"\(4087 of 4096 bytes\): carry it again"),
        (lambda p: p.unlink(), "part-01 is not there; the pack has"),
        (lambda p: p.with_name("manifest.json").write_text("[]"), "no manifest"),
        (lambda p: p.with_name("manifest.json").write_text('{"format": 2}'), "has format 2"),
    ],
)
def test_a_pack_that_is_not_whole_is_refused(
    packing: ModuleType, wheels: list[Path], tmp_path: Path, spoil: Any, message: str
) -> None:
    make_pack(packing, tmp_path / "pack", wheels)
    spoil(tmp_path / "pack" / "part-01")
    words = [sys.executable, TOOLS / "offline_gpu.py", "unpack", tmp_path / "pack", tmp_path / "t"]
    done = subprocess.run([*words, "--only-files"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: ")
    assert re.search(message, done.stderr)
    assert not (tmp_path / "t").exists()


def test_a_member_outside_its_folder_is_refused(
    packing: ModuleType, unpacking: ModuleType, tmp_path: Path
) -> None:
    wheel = make_wheel(tmp_path / "wheels", "evil", {"../evil.py": b""})
    make_pack(packing, tmp_path / "pack", [wheel])
    with pytest.raises(SystemExit, match="outside its folder"):
        unpacking.unpack(tmp_path / "pack", tmp_path / "t", only_files=True)
    assert not list(tmp_path.rglob("evil.py"))


@pytest.mark.parametrize(
    ("requires", "said"),
    [
        (("other>=1",), []),
        (("other>=2",), ["tool requires other>=2, not 1.0"]),
        (("torch==2.11.0", "kubernetes"), []),
        (("numpy<2",), ["tool requires numpy<2, not 2.5.2"]),
        (("absent>=1",), ["tool requires absent>=1, which is not packed"]),
        (('absent; sys_platform == "win32"', 'absent; extra == "unasked"'), []),
        (
            ("other[more]",),
            ['other requires deeper; extra == "more", which is not packed'],
        ),
    ],
)
def test_requirements_are_looked_up(
    packing: ModuleType, tmp_path: Path, requires: tuple[str, ...], said: list[str]
) -> None:
    made = [
        make_wheel(tmp_path / "wheels", "tool", {}, requires),
        make_wheel(tmp_path / "wheels", "other", {}, ('deeper; extra == "more"',)),
    ]
    assert packing.missing_requirements([packing.read_wheel(path) for path in made]) == said


def test_the_tokenizer_keeps_every_word_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The text of any token ids splits into those words again: no prompt grows."""
    monkeypatch.syspath_prepend(str(TOOLS))
    importlib.import_module("offline_model").write_tokenizer(tmp_path)
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(4096))
    assert all(word.split() == [word] for word in vocabulary)
    assert tokenizer["pre_tokenizer"] == {"type": "WhitespaceSplit"}


def test_the_model_has_the_shape_of_its_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))
    written = importlib.import_module("offline_model")._config()
    model = read_model("llama-1b-random", TOOLS.parent / "conf")
    for name in ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"):
        assert getattr(model, name) == written[name]
