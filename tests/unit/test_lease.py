import io
import time

from kvroad.agent.lease import Lease


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_silence_ends_it_so_early_that_the_host_is_clean_within_the_lease() -> None:
    clock = Clock()
    lease = Lease(10.0, clock)
    clock.now += 5.9
    assert lease.stop_reason() is None
    lease.beat()
    clock.now += 5.9
    assert lease.stop_reason() is None
    clock.now += 0.2
    assert lease.grace_s(20.0) == 2.0
    assert lease.stop_reason() == "no heartbeat for 6.1 s (lease 10 s)"
    lease.beat()
    assert lease.stop_reason() is not None


def test_the_grace_of_an_ordinary_end_is_the_plans() -> None:
    assert Lease(10.0).grace_s(20.0) == 20.0
    assert Lease(None).grace_s(20.0) == 20.0


def test_a_step_of_the_wall_clock_changes_nothing(monkeypatch) -> None:
    lease = Lease(6.0)
    monkeypatch.setattr(time, "time", lambda: 4e9)
    assert lease.stop_reason() is None


def test_nobody_watches_a_run_by_hand() -> None:
    clock = Clock()
    lease = Lease(None, clock)
    clock.now += 1e6
    assert lease.stop_reason() is None


def test_the_end_of_input_and_the_word_stop_end_it() -> None:
    lease = Lease(6.0)
    lease._read(io.StringIO(".\n.\nstop\n"))
    assert lease.stop_reason() == "the client asked for it"
    lease = Lease(6.0)
    lease._read(io.StringIO(".\n"))
    assert lease.stop_reason() == "the client closed the connection"


def test_a_command_is_a_sign_of_life_and_waits_to_be_taken() -> None:
    lease = Lease(6.0)
    lease._read(io.StringIO('.\n{"do": "start"}\n'))
    assert lease.commands.get_nowait() == {"do": "start"}
