"""The command ``kvroad``: what is no output of the workflow."""

from __future__ import annotations

import argparse
import sys
import uuid
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from kvroad.by_hand import ingest, write_bundle
from kvroad.compose import compose
from kvroad.design import make_design
from kvroad.errors import UserError
from kvroad.hosts import Host, HostLost, open_host
from kvroad.measure import Measurement, owner_of
from kvroad.publish import publish
from kvroad.study import Study, hosts_of

__all__ = ["main"]

# Exit statuses: 1 is a host or a folder that did not do, 2 a command line that cannot be meant.
_DONE, _FAILED, _USAGE = 0, 1, 2
_RESULTS = Path("results")
_REPORTS = Path("reports")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command in the folder that holds ``conf/`` and return the exit status."""
    arguments = _parser().parse_args(argv)
    try:
        study = compose(arguments.overrides, Path("conf"))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return _USAGE
    try:
        status: int = arguments.run(study, arguments)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return _FAILED
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kvroad",
        description="Commands beside the workflow. Overrides are Hydra's: study=smoke host=ssh "
        "host.address=node1. Exit status: 0 done, 1 not done, 2 not understood.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    overrides = argparse.ArgumentParser(add_help=False)
    overrides.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="such as study=smoke")

    stop = commands.add_parser(
        "stop", parents=[overrides], help="end what this study left running on its hosts"
    )
    stop.set_defaults(run=_stop)

    bundle = commands.add_parser(
        "bundle",
        parents=[overrides],
        help="write one file that runs the missing launches on a host without SSH",
    )
    bundle.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")
    bundle.set_defaults(run=_bundle)

    take = commands.add_parser(
        "ingest", help="take in the folder that such a file made, as if measured here"
    )
    take.add_argument("folder", type=Path, metavar="DIR")
    take.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="those of the bundle")
    take.set_defaults(run=_ingest)

    share = commands.add_parser(
        "publish",
        parents=[overrides],
        help="put the raw files of a study beside its report, to commit both",
    )
    share.set_defaults(run=_publish)
    return parser


def _publish(study: Study, arguments: argparse.Namespace) -> int:
    archive = publish(study, make_design(study), _RESULTS, _REPORTS)
    words = " ".join(
        f"'{word}'" if set("[]{}*?$ ") & set(word) else word for word in study.overrides
    )
    print(f"{archive}: {archive.stat().st_size} bytes. Commit it: git add -f {archive.parent}")
    print(
        f"Anyone makes the same report from it: tar -xJf {archive} && "
        f"uv run snakemake --cores 1 all --config {words}"
    )
    return _DONE


def _stop(study: Study, arguments: argparse.Namespace) -> int:
    owner, status = owner_of(study), _DONE
    for told in hosts_of(study):
        try:
            with closing(open_host(told)) as host:
                for one in host.hosts():
                    _stop_on(one, owner)
        except HostLost as error:
            print(f"error: {error}", file=sys.stderr)
            status = _FAILED
    return status


def _stop_on(host: Host, owner: str) -> None:
    ended = 0
    for event in host.stop(owner):
        if event["event"] == "busy":
            holder = event["holder"]
            print(f"{host.label}: {holder.get('owner')} is at work there; left alone")
        elif event["event"] in ("stopping", "reaped"):
            ended += 1
    what = "1 launch" if ended == 1 else f"{ended or 'no'} launches"
    print(f"{host.label}: {what} of this study ended")


def _bundle(study: Study, arguments: argparse.Namespace) -> int:
    design = make_design(study)
    n = write_bundle(study, design, _RESULTS, arguments.overrides, arguments.output)
    print(
        f"{arguments.output}: {n} launches; on the host, with Python 3.10 or newer and NIXL: "
        f"python3 {arguments.output.name} OUTPUT_DIR"
    )
    return _DONE


def _ingest(study: Study, arguments: argparse.Namespace) -> int:
    with_ = Measurement(
        study=study,
        design=make_design(study),
        host=None,
        results_dir=_RESULTS,
        run_id=uuid.uuid4().hex,
        source_dir=Path.cwd(),
        say=print,
    )
    n_taken, n_refused = ingest(with_, arguments.folder, print)
    print(f"{n_taken} raw folders taken in, {n_refused} refused")
    return _FAILED if n_refused else _DONE


if __name__ == "__main__":
    sys.exit(main())
