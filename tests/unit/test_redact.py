import json

import pytest

from kvroad.evidence.redact import REDACTED, is_secret_name, redact, redact_env, redact_text


@pytest.mark.parametrize(
    "name",
    [
        *("HF_TOKEN", "GITHUB_TOKEN", "DB_PASSWORD", "api_key", "API-KEY", "AWS_SECRET_ACCESS_KEY"),
        *("GOOGLE_APPLICATION_CREDENTIALS", "SSH_PASSPHRASE", "DB_PWD", "Authorization"),
    ],
)
def test_names_of_secrets(name):
    assert is_secret_name(name)
    assert redact_env({name: "value"}) == {name: REDACTED}
    assert "value" not in redact_text(f"{name}=value")


@pytest.mark.parametrize(
    "text",
    [
        "prompt_tokens=4096 max_tokens: 5 TOKENIZERS_PARALLELISM=false",
        "UCX  INFO  UCX_* env variables: UCX_TLS=cma,tcp UCX_NET_DEVICES=lo",
        "PWD=/root OLDPWD=/",
        "sqlite:///mlflow.db http://127.0.0.1:8000/metrics",
        "[1795993263.688471] [vm:26464:0]   |  7050 | 0..inf | zero-copy | cma/memory |",
    ],
)
def test_what_is_no_secret_stays(text):
    assert redact_text(text) == text


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("serve --api-key abc123 --max-model-len 5", "abc123"),
        ("--token=abc123", "abc123"),
        ("postgres://me:p@ss@host:5432/db", "p@ss"),
        ("Authorization: Bearer abcdefghijk", "abcdefghijk"),
        ("export FOO=hf_abcdefghijklmnopqrst", "hf_abcdefghijklmnopqrst"),
        ("{'HF_TOKEN': 'abc123'}", "abc123"),
        ('["--api-key", "abc123"]', "abc123"),
        ("key sk-abcdefghijklmnop1234", "sk-abcdefghijklmnop1234"),
    ],
)
def test_secrets_in_text(text, secret):
    assert secret not in redact_text(text)
    assert REDACTED in redact_text(text)


def test_what_stands_beside_a_secret_stays():
    assert redact_text("HF_TOKEN=abc UCX_TLS=tcp") == f"HF_TOKEN={REDACTED} UCX_TLS=tcp"
    assert redact_text("http://me:pw@h:80/p") == f"http://me:{REDACTED}@h:80/p"


def test_json_stays_json():
    data = {
        "HF_TOKEN": 'a"b',
        "API_KEY": None,
        "cookies": [1, 2],
        "secret": {"a": True},
        "PASSWORD": 5,
        "prompt_tokens": [4096],
        "text": json.dumps({"HF_TOKEN": "abc", "n": [1]}),
    }
    read = json.loads(redact_text(json.dumps(data)))
    assert read["HF_TOKEN"] == read["PASSWORD"] == REDACTED
    assert json.loads(read["text"]) == {"HF_TOKEN": REDACTED, "n": [1]}
    assert (read["prompt_tokens"], read["API_KEY"], read["secret"]) == ([4096], None, {"a": True})


def test_nested_data():
    data = {"env": {"HF_TOKEN": "x", "UCX_TLS": "tcp"}, "argv": ["--port", "1"], "n": 3}
    assert redact(data) == {
        "env": {"HF_TOKEN": REDACTED, "UCX_TLS": "tcp"},
        "argv": ["--port", "1"],
        "n": 3,
    }


def test_values_are_searched_too():
    assert redact_env({"PROXY": "http://u:pw@h"}) == {"PROXY": f"http://u:{REDACTED}@h"}
