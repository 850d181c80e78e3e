"""What of Snakemake's command line reaches Hydra, and what of Hydra's words reaches nothing."""

import re
from dataclasses import replace

import pytest
from composing import CONF, refusal

from kvroad.errors import UserError
from kvroad.study.checks import validate
from kvroad.study.compose import compose
from kvroad.study.design import make_design
from kvroad.study.snakemake_words import check_command_line, snakemake_overrides


def snakemake(*words):
    return ["snakemake", "--cores", "1", "all", *words]


class TestCommandLine:
    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (
                ["transport=[roce]"],
                "transport=[roce] is an override and needs --config before it, after all targets: "
                "--config 'transport=[roce]'",
            ),
            (["-n", "study=smoke"], "--config study=smoke"),
            (["engine.num_threads=0"], "--config hydra=engine.num_threads=0"),
            (["+engine.env.A=1"], "--config hydra=+engine.env.A=1"),
            (["hydra=seed=2"], "--config hydra=seed=2"),
            (["--keep-going", "seed=2"], "seed=2 is an override and needs --config before it"),
            (
                ["--config", "study=smoke", "--config", "transport=[roce]"],
                "--config is given 2 times and Snakemake keeps only the last; "
                "give it once: --config study=smoke 'transport=[roce]'",
            ),
            (["-C", "seed=1", "--config=seed=2"], "give it once: --config seed=1 seed=2"),
            (["-Cseed=1", "-C", "session=it's"], r"--config seed=1 'session=it'\''s'"),
        ],
    )
    def test_what_snakemake_would_lose_is_refused_in_one_line(self, words, message):
        with pytest.raises(UserError) as caught:
            check_command_line(snakemake(*words))
        assert str(caught.value).endswith(message) or str(caught.value).startswith(message)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        "words",
        [
            [],
            ["--config", "study=smoke", "transport=[shm,roce]", "hydra=engine.num_threads=0"],
            ["-C", "seed=1", "--", "all"],
            ["--set-threads", "study=1", "--resources", "host=1"],
            ["--target-jobs", "measure:study=smoke", "--config", "seed=2", "--mode", "subprocess"],
            ["results/study=smoke.txt", "other=1"],
        ],
    )
    def test_what_snakemake_understands_passes(self, words):
        check_command_line(snakemake(*words))

    def test_the_name_of_the_program_may_be_left_out(self):
        check_command_line(["--config", "study=smoke", "--cores", "1"])
        with pytest.raises(UserError, match="is an override and needs --config before it"):
            check_command_line(["study=smoke"])


class TestSnakemakeConfig:
    def test_list_elements_are_typed_by_hydra_though_snakemake_makes_them_text(self):
        config = {"transport": ["tcp", "shm"], "prompt_tokens": ["4096", "32768"]}
        overrides = snakemake_overrides(config)
        assert overrides == ["transport=[tcp,shm]", "prompt_tokens=[4096,32768]"]
        assert compose(overrides, CONF).prompt_tokens == [4096, 32768]

    def test_the_key_hydra_comes_last_and_is_split_outside_quotes_and_brackets(self):
        text = """engine.num_threads=0 +engine.env.A="x  y" transport.tcp.env={A: 'b c', B: "d"}"""
        overrides = snakemake_overrides({"hydra": text, "seed": 2})
        assert overrides == [
            "seed=2",
            "engine.num_threads=0",
            '+engine.env.A="x  y"',
            """transport.tcp.env={A: 'b c', B: "d"}""",
        ]
        study = compose(overrides, CONF)
        assert study.engine.env == {"A": "x  y"}
        assert study.transports["tcp"].env == {"A": "b c", "B": "d"}

    def test_the_key_hydra_may_be_a_list(self):
        config = {"hydra": ["engine.num_threads=0", "transport.tcp.ucx_tls=[tcp,self]"]}
        assert snakemake_overrides(config) == config["hydra"]

    @pytest.mark.parametrize("text", ["seed=[1", "engine.env.A='x", "seed=1)", {"a": "b"}, "", 3])
    def test_a_hydra_value_that_is_not_overrides_is_refused(self, text):
        with pytest.raises(UserError) as caught:
            snakemake_overrides({"hydra": text})
        assert str(caught.value).startswith("hydra")
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("config", "message"),
        [
            ({"transport": "[nvlink"}, "the list is not closed; write transport=[nvlink]"),
            ({"transport": "nvlink,roce"}, "several values need brackets: transport=[nvlink,roce]"),
            ({"transport": None}, "transport has no value"),
            ({"launches": "four"}, "launches: 'four' is not a whole number"),
            ({"prompt_tkens": ["1"]}, "unknown key 'prompt_tkens'; did you mean 'prompt_tokens'?"),
            ({"engine": {"num_thread": 1}}, "unknown key of engine: 'num_thread'; did you mean"),
        ],
    )
    def test_mistakes_are_refused_in_one_line(self, config, message):
        assert message in refusal(*snakemake_overrides(config))

    def test_mappings_of_a_config_file_reach_the_fields_below_a_group(self):
        config = {
            "engine": {"num_threads": 0, "env": {"A": "1e3", "B": "null", "C": "true"}},
            "transport": ["tcp", "shm"],
            "contrasts": [["shm", "tcp"]],
            "claims": {"margins": {"pull_ms": 0.1}},
            "host": {"gpus": [0, 1], "user": None},
        }
        study = compose(snakemake_overrides(config), CONF)
        assert study.engine.num_threads == 0
        assert study.engine.env == {"A": "1e3", "B": "null", "C": "true"}
        assert study.contrasts == [["shm", "tcp"]]
        assert study.claims.margins["pull_ms"] == 0.1
        assert study.host.gpus == [0, 1]

    @pytest.mark.parametrize(
        ("written", "read", "session"),
        [
            ("session=010", 10, "010"),
            ("session=1_000", 1000, "1_000"),
            ("session=1e3", 1000.0, "1e3"),
            ("session=true", "true", "true"),
            ('session="010"', 10, "010"),
        ],
    )
    def test_a_value_is_taken_as_written_where_snakemake_changes_it(self, written, read, session):
        overrides = snakemake_overrides({"session": read}, snakemake("--config", written))
        assert compose(overrides, CONF).session == session

    def test_quotes_at_the_end_of_the_key_hydra_are_kept(self):
        written = """hydra=engine.env.A='x "y"' engine.env.B="z" """.strip()
        config = {"hydra": """engine.env.A='x "y"' engine.env.B="z"""}
        overrides = snakemake_overrides(config, snakemake("--config", written))
        assert compose(overrides, CONF).engine.env == {"A": 'x "y"', "B": "z"}


HOSTILE = [
    "a,b",
    "a=b",
    "/m/epoch=9%a|b",
    "key: value",
    "two  blanks ",
    " leading",
    "it's",
    'say "x"',
    "'both' \"kinds\"",
    "$HOME",
    "${HOME}",
    "\\${a}",
    "\\\\${a}",
    "${",
    "$(touch x); `id`",
    "back\\slash",
    "ends\\",
    "ends\\\\",
    "\\'",
    "[list",
    "{map",
    "a]b}",
    "#no comment",
    "a #b",
    "--flag",
    "*?",
    "~",
    "null",
    "true",
    "010",
    "1_000",
    "1e3",
    "0.50",
    "inf",
    "ünï→🎉",
    "",
]


class TestHostileValues:
    def test_reach_an_environment_and_a_path_unchanged(self):
        env = {f"V{n}": value for n, value in enumerate(HOSTILE)}
        config = {"engine": {"env": env}, "host": {"work_dir": "/tmp/${x} 'y'=%z,w"}}
        study = compose(snakemake_overrides(config), CONF)
        assert study.engine.env == env
        assert study.host.work_dir == "/tmp/${x} 'y'=%z,w"
        assert make_design(study).arms["shm"].environment.items() >= env.items()

    def test_reach_a_list_unchanged(self):
        config = {"claims": {"quoted": {"list": HOSTILE, "lists": [HOSTILE, ["x"]]}}}
        quoted = compose(snakemake_overrides(config), CONF).claims.quoted
        assert quoted == config["claims"]["quoted"]

    def test_make_no_file_name(self):
        study = compose([], CONF)
        for value in HOSTILE:
            if not re.fullmatch(r"[a-z0-9_.]+", value):
                with pytest.raises(UserError, match="becomes part of a file name"):
                    validate(replace(study, session=value))

    @pytest.mark.parametrize("value", ["a\nb", "a\0b", "a\rb", "a\x1bb"])
    def test_with_control_characters_are_refused(self, value):
        message = refusal(*snakemake_overrides({"engine": {"env": {"A": value}}}))
        assert "engine.env.A" in message
