"""A running agent seen from the control side: heartbeats out, events in, silence noticed."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
from collections.abc import Iterator
from types import TracebackType

from kvroad.agent.exits import BUSY, OK
from kvroad.errors import UserError
from kvroad.evidence.events import AgentEvent, Holder
from kvroad.hosts.machine import HostLost, Link

__all__ = ["AgentSession"]

_HEARTBEAT_S = 1.0
_TICK_S = 1.0


class AgentSession:
    """Keeps an agent alive while it is entered; leaving it by an exception ends the agent.

    Parameters
    ----------
    lease_s
        Seconds without an event after which the host counts as lost.
    label
        Names the host in messages.
    """

    def __init__(self, link: Link, lease_s: float, label: str) -> None:
        self._link = link
        self._lease_s = lease_s
        self.label = label
        self._events: queue.Queue[AgentEvent | None] = queue.Queue()
        self._noise: list[str] = []
        self._is_over = threading.Event()
        self._sending = threading.Lock()
        self._last: AgentEvent | None = None
        self._is_silent = False
        self.has_ended = False

    def __enter__(self) -> AgentSession:
        for work in (self._beat, self._read):
            threading.Thread(target=work, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over.set()
        with self._sending:
            if kind is not None and not self.has_ended:
                with contextlib.suppress(OSError):
                    self._link.send("stop")
            with contextlib.suppress(OSError):
                self._link.close_input()
        if kind is not None:
            self._drain()
        self._link.close()

    @property
    def is_orderly(self) -> bool:
        """Whether the agent has ended and says that nothing of its launch is left."""
        return self.has_ended and self._link.wait(_TICK_S) == OK

    def send(self, line: str) -> None:
        """Send the agent a line: the plan, or a command in JSON.

        Raises
        ------
        HostLost
            When nobody reads it.
        """
        try:
            with self._sending:
                self._link.send(line)
        except OSError as error:
            raise HostLost(self._text(f"the agent does not listen: {error}")) from error

    def events(self) -> Iterator[AgentEvent]:
        """Yield events until the agent has ended.

        Raises
        ------
        HostLost
            When there was none for as long as the lease, or the agent ended badly.
        UserError
            When somebody else has the host.
        """
        while (event := self.next_event()) is not None:
            yield event
        self._refuse()

    def next_event(self) -> AgentEvent | None:
        """Return the next event other than ``alive``, None at the end."""
        silent_s = 0.0
        while True:
            try:
                event = self._events.get(timeout=_TICK_S)
            except queue.Empty:
                # Counted in ticks, so that a pause of this process is no silence of the host.
                silent_s += _TICK_S
                if silent_s >= self._lease_s:
                    self._is_silent = True
                    raise HostLost(self._text(f"no sign of life for {silent_s:g} s")) from None
                continue
            silent_s = 0.0
            if event is None:
                self.has_ended = True
                return None
            if event["event"] in ("busy", "end"):
                self._last = event
            if event["event"] != "alive":
                return event

    def _refuse(self) -> None:
        returncode, last = self._link.wait(_TICK_S * 5), self._last or {"event": "none"}
        if returncode == OK:
            return
        if returncode == BUSY:
            holder: Holder = last.get("holder", {})
            raise UserError(
                f"{self.label} is busy: {holder.get('owner')} (pid {holder.get('pid')}) "
                f"holds it since {holder.get('since')}; wait, or set host.lock_timeout_s"
            )
        if returncode is None or returncode < 0:
            raise HostLost(self._text("the agent or the connection to it broke off"))
        reason = last.get("reason") or self._last_words()
        raise HostLost(self._text(f"the agent ended with status {returncode}: {reason}"))

    def _last_words(self) -> str:
        lines = [line.strip() for line in self._link.errors().splitlines() if line.strip()]
        return (lines or self._noise or ["no message"])[-1]

    def _text(self, what: str) -> str:
        return f"{self.label}: {what}"

    def _drain(self) -> None:
        """Wait for the agent's end, no longer than its own lease lets it live."""
        with contextlib.suppress(HostLost):
            while not (self.has_ended or self._is_silent):
                self.next_event()

    def _beat(self) -> None:
        while not self._is_over.wait(_HEARTBEAT_S):
            with self._sending:
                if self._is_over.is_set():
                    return
                try:
                    self._link.send(".")
                except OSError:
                    return

    def _read(self) -> None:
        for line in self._link.lines():
            event: AgentEvent | None = None
            with contextlib.suppress(ValueError):
                event = json.loads(line)
            if isinstance(event, dict) and "event" in event:
                self._events.put(event)
            elif line.strip():
                # Login scripts like to say something.
                self._noise.append(line.strip())
        self._events.put(None)
