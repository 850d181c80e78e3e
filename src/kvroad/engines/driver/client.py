"""Requests to an OpenAI-style server, one connection each, with the times of its tokens."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypedDict
from urllib.parse import urlsplit

__all__ = ["Answer", "Failed", "ask", "get", "random_prompt", "send_all"]

# Token ids that every vocabulary in use has and that are no special tokens.
_FIRST_ID, _LAST_ID = 300, 4000


class _Usage(TypedDict, total=False):
    prompt_tokens: int
    completion_tokens: int


class _Event(TypedDict, total=False):
    """An event of OpenAI's stream of completions, as far as it is used."""

    error: object
    choices: list[object]
    usage: _Usage | None


class Failed(Exception):
    """A request that got no good answer; the text says why, in one line."""


@dataclass
class Answer:
    """One request and what came of it; times are seconds of the monotonic clock."""

    started: float
    first_token: float | None = None
    ended: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    chunks: list[float] = field(default_factory=list)
    error: str | None = None

    def as_row(self, number: int) -> dict[str, object]:
        """Return the row of ``requests.jsonl``."""
        row = {k: v for k, v in vars(self).items() if k != "chunks"}
        return {"request": number, **row, "n_chunks": len(self.chunks)}


def random_prompt(seed: str, n_tokens: int) -> list[int]:
    """Return token ids drawn from a seed."""
    source = random.Random(seed)
    return [source.randint(_FIRST_ID, _LAST_ID) for _ in range(n_tokens)]


def get(url: str, timeout_s: float) -> str:
    """Return the body of a GET.

    Raises
    ------
    Failed
        When there is no answer, or one whose status is not 200.
    """
    connection, parts = _connect(url, timeout_s)
    try:
        connection.request("GET", parts.path or "/")
        return _body(connection.getresponse(), url)
    except (OSError, http.client.HTTPException) as error:
        raise Failed(f"{url}: {error or type(error).__name__}") from error
    finally:
        connection.close()


def ask(
    base_url: str, model: str, prompt: list[int], output_tokens: int, timeout_s: float
) -> Answer:
    """Send one streaming completion and read it to its end; a failure is in the answer."""
    url = f"{base_url}/v1/completions"
    connection, parts = _connect(url, timeout_s)
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": output_tokens,
        "min_tokens": output_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    answer = Answer(time.monotonic())
    try:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", parts.path, json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            _body(response, url)
        for event in _events(response):
            _take(answer, event)
        answer.ended = time.monotonic()
        if answer.first_token is None:
            answer.error = "the stream ended without a token"
    except (OSError, ValueError, http.client.HTTPException, Failed) as error:
        answer.error = str(error) or type(error).__name__
    finally:
        connection.close()
    return answer


def send_all(
    base_url: str,
    model: str,
    prompts: list[list[int]],
    output_tokens: int,
    concurrency: int,
    timeout_s: float,
) -> list[Answer]:
    """Send all prompts, so many at a time, and return their answers in the prompts' order."""
    answers: list[Answer | None] = [None] * len(prompts)
    waiting = iter(range(len(prompts)))
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                number = next(waiting, None)
            if number is None:
                return
            answers[number] = ask(base_url, model, prompts[number], output_tokens, timeout_s)

    threads = [threading.Thread(target=work) for _ in range(min(concurrency, len(prompts)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [answer for answer in answers if answer is not None]


def _connect(url: str, timeout_s: float) -> tuple[http.client.HTTPConnection, Any]:
    parts = urlsplit(url)
    host = parts.hostname or ""
    return http.client.HTTPConnection(host, parts.port, timeout=timeout_s), parts


def _body(response: http.client.HTTPResponse, url: str) -> str:
    text = response.read().decode(errors="replace")
    if response.status != 200:
        raise Failed(f"{url}: status {response.status}: {' '.join(text.split())[:300]}")
    return text


def _events(response: http.client.HTTPResponse) -> Iterator[_Event]:
    """Yield the data of server-sent events until ``[DONE]``."""
    for raw in response:
        line = raw.decode(errors="replace").strip()
        if not line.startswith("data:"):
            continue
        data = line[5:].strip()
        if data == "[DONE]":
            return
        yield json.loads(data)


def _take(answer: Answer, event: _Event) -> None:
    now = time.monotonic()
    if event.get("error"):
        raise Failed(f"the server says: {event['error']}")
    # A token may have no text yet: half a character, or a special one.
    if event.get("choices"):
        answer.first_token = answer.first_token or now
        answer.chunks.append(now)
    usage: _Usage = event.get("usage") or {}
    answer.output_tokens = usage.get("completion_tokens", answer.output_tokens)
    answer.input_tokens = usage.get("prompt_tokens", answer.input_tokens)
