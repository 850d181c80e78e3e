"""A study on several hosts, as its words and its file choose them."""

import dataclasses
import shutil

import pytest
from composing import CONF, refusal

from kvroad.study.compose import compose
from kvroad.study.name import study_slug


@pytest.fixture
def conf_with_nodes(tmp_path):
    conf = tmp_path / "conf"
    shutil.copytree(CONF, conf)
    for name in ("node1", "node2"):
        text = f"defaults:\n  - ssh\n  - _self_\n\nname: {name}\naddress: {name}\n"
        (conf / "host" / f"{name}.yaml").write_text(text)
    study = (conf / "study/smoke.yaml").read_text()
    fleet = study.replace("/host: local", "/host: [node1, node2]").replace(
        "launches: 2", "launches: 4"
    )
    (conf / "study/fleet.yaml").write_text(fleet)
    return conf


class TestSeveralHosts:
    def test_what_is_said_of_one_host_wins_over_what_is_said_of_all(self, conf_with_nodes):
        words = ["study=smoke", "launches=4", "host=[node1,node2]"]
        study = compose([*words, "host.node2.port=7", "host.port=8"], conf_with_nodes)
        assert [(h.name, h.address, h.port) for h in study.hosts] == [
            ("node1", "node1", 8),
            ("node2", "node2", 7),
        ]
        assert study.host == study.hosts[0]
        # How a host is reached changes no result, and so no name of a folder.
        assert study_slug(study) == "smoke+host=[node1,node2]+launches=4"

    def test_a_study_may_choose_them_in_its_file(self, conf_with_nodes):
        assert [h.name for h in compose(["study=fleet"], conf_with_nodes).hosts] == [
            "node1",
            "node2",
        ]
        assert compose(["study=fleet", "host=local"], conf_with_nodes).hosts == []

    def test_one_in_brackets_is_the_study_on_that_host(self):
        alone, listed = (compose(["study=smoke", w], CONF) for w in ("host=local", "host=[local]"))
        assert dataclasses.replace(listed, overrides=alone.overrides) == alone

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["study=smoke"], "launches: 2 is not allowed; on 2 hosts a multiple of 4 gives each"),
            (["study=fleet", "host.node3.port=1"], "unknown key of host: 'node3'"),
            (["study=fleet", "host.node1.prot=1"], "'prot'; did you mean 'port'?"),
            (["study=fleet", "host.name=x"], "host: two hosts are named 'x'; set host.OPTION.name"),
            (["study=fleet", "host=[node1,h200_x2]"], "h200_x2 is reached by hand"),
        ],
    )
    def test_what_cannot_be_meant_is_one_line(self, conf_with_nodes, words, message):
        if "study=smoke" in words:
            words = [*words, "host=[node1,node2]"]
        assert message in refusal(*words, conf=conf_with_nodes)
