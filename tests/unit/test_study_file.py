"""What a job reads is the study that was composed."""

from dataclasses import replace
from pathlib import Path

import pytest

from kvroad.errors import UserError
from kvroad.study.compose import compose
from kvroad.study.design import make_design
from kvroad.study.file import read_study, study_path, write_study

CONF = Path(__file__).parents[2] / "conf"
STUDIES = sorted(path.stem for path in (CONF / "study").glob("*.yaml"))


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_comes_back_as_it_was(name: str, tmp_path: Path) -> None:
    overrides = [f"study={name}"]
    try:
        study = compose(overrides, CONF)
    except Exception as error:  # noqa: BLE001 (a study that needs more than its name)
        pytest.skip(str(error))
    path = study_path(tmp_path, "run", overrides)
    write_study(study, path)
    found = read_study(path)
    assert found == study
    assert make_design(found) == make_design(study)


def test_hosts_and_hostile_values_come_back_and_a_password_does_not(tmp_path: Path) -> None:
    overrides = [
        *("study=smoke", "host=[local,ssh]", "launches=4", "host.ssh.address=node1"),
        "transport.shm.env.X='a,b=c d\"é'",
        "tracking.uri=postgresql://me:secret@db/x",
    ]
    study = compose(overrides, CONF)
    path = study_path(tmp_path, "run", overrides)
    write_study(study, path)
    assert "secret" not in path.read_text()
    found = read_study(path)
    assert replace(found, tracking=study.tracking) == study


def test_a_file_that_another_version_wrote_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "study.json"
    write_study(compose(["study=smoke"], CONF), path)
    text = path.read_text()
    path.write_text(text.replace('"prompt_tokens"', '"prompt_token"'))
    with pytest.raises(UserError, match=r"^unknown key 'prompt_token'; did you mean 'prompt_tok"):
        read_study(path)
    path.write_text(text.replace('"num_threads"', '"threads"'))
    with pytest.raises(UserError, match=r"^unknown key of engine: 'threads'; did you mean 'num_"):
        read_study(path)


def test_without_a_file_there_is_no_study_and_other_words_have_another_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no study there"):
        read_study(tmp_path / "none.json")
    assert study_path(tmp_path, "run", ["a=1"]) != study_path(tmp_path, "run", ["a=2"])
