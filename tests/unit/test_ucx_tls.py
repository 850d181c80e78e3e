"""Entries of UCX_TLS, which UCX only warns of."""

import importlib.util
import re
from pathlib import Path

import pytest

from kvroad.errors import UserError
from kvroad.study.ucx import UCX_ALIASES, UCX_TRANSPORTS, check_ucx_tls


class TestUcxTls:
    @pytest.mark.parametrize(
        "entries",
        [
            ["rc_x", "cuda_copy", "cuda_ipc"],
            ["^cuda_ipc"],
            ["^rc_x", "dc"],
            ["\\rc_mlx5", "tcp"],
            ["^\\rc_mlx5"],
            ["rc_mlx5", "ud_mlx5:aux"],
            ["all"],
            ["sm", "self"],
        ],
    )
    def test_takes_what_ucx_takes(self, entries):
        check_ucx_tls(entries, "here")

    @pytest.mark.parametrize(
        ("entries", "hint"),
        [
            (["rcx", "tcp"], "'rcx' is not a UCX transport; did you mean 'rc_x'?"),
            (["tcp", "cuda_icp"], "'cuda_icp' is not a UCX transport; did you mean 'cuda_ipc'?"),
            (["tcp", "^cma"], "'^cma' is not a UCX transport; did you mean 'cma'?"),
            (["\\rc_x"], "is not a UCX transport; did you mean 'rc_mlx5'?"),
            (["rc_x,cuda_copy"], "'rc_x,cuda_copy' is not a UCX transport"),
            ([""], "'' is not a UCX transport"),
            ([], "here is empty"),
        ],
    )
    def test_refuses_what_ucx_would_only_warn_of(self, entries, hint):
        with pytest.raises(UserError) as caught:
            check_ucx_tls(entries, "here")
        message = str(caught.value)
        assert message.startswith("here")
        assert hint in message
        assert "\n" not in message

    def test_every_name_is_in_the_installed_ucx(self):
        spec = importlib.util.find_spec("nixl_cu13")
        if spec is None or spec.origin is None:
            pytest.skip("NIXL is not installed")
        folder = Path(spec.origin).parents[1] / "nixl_cu13.libs"
        text = b"".join(path.read_bytes() for path in folder.glob("libuc[pt]*.so*"))
        words = {w.removesuffix(b":aux") for w in re.findall(rb"(?<=\0)[a-z0-9_:]+(?=\0)", text)}
        # A compiler keeps one copy of "rc" inside a longer string's tail, so tails count too.
        assert {n for n in UCX_TRANSPORTS if n.encode() not in words} == set()
        assert {n for n in UCX_ALIASES if (n + "\0").encode() not in text} == set()
