"""A memory server that is killed with SIGKILL at random moments, while turns arrive and agents write.

Clients add numbered turns, each with an idempotency key, again and again until the server acknowledges it.
After the last kill the server writes what waits. Then every turn must be in one session of its namespace, in
the order of the acknowledgements, and have one memory.
"""

import random
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from uuid import uuid4

import httpx
from sqlalchemy import select

from memory_program.bank.db_schema import TURNS
from memory_program.bank.store import BankStore
from tests.killed_runs import Toll
from tests.memory_server import MemoryServer

CLIENTS = 5
ENDING_SHARE = 0.1
_MESSAGES = "/memory/v1/messages"
_PATIENCE_S = 300.0


@dataclass(frozen=True, slots=True)
class ToldTurn:
    """A turn that the server acknowledged: its text, when it was first sent, and when acknowledged."""

    text: str
    sent_s: float
    acknowledged_s: float


class Tellers:
    """Clients that tell turns from ``__enter__`` to ``__exit__``; ``told`` has all of them by namespace."""

    def __init__(self, url: str, namespaces: int, pause_s: float) -> None:
        self.told: dict[str, list[ToldTurn]] = {f"user-{number}": [] for number in range(namespaces)}
        self._url, self._pause_s = url, pause_s
        self._is_over = threading.Event()
        self._pool = ThreadPoolExecutor(CLIENTS)

    def __enter__(self) -> "Tellers":
        self._running = [self._pool.submit(self._tell, client) for client in range(CLIENTS)]
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for client in self._running:
            client.result()

    @property
    def count(self) -> int:
        for client in self._running:
            assert not client.done() or client.result() is None  # a refused request ends it
        return sum(map(len, self.told.values()))

    def _tell(self, client: int) -> None:
        rng, number = random.Random(client), 0
        with httpx.Client(base_url=self._url, timeout=60) as http:
            while not self._is_over.is_set():
                number += 1
                namespace = rng.choice(list(self.told))
                text = f"I bought bicycle {client}x{number} in Lisbon yesterday."
                body = {
                    "messages": [{"role": "user", "content": text}],
                    "end": rng.random() < ENDING_SHARE,
                }
                sent_s = time.monotonic()
                self._send(http, namespace, body)
                self.told[namespace].append(ToldTurn(text, sent_s, time.monotonic()))
                time.sleep(rng.expovariate(1 / self._pause_s))

    def _send(self, http: httpx.Client, namespace: str, body: dict[str, object]) -> None:
        key, until = {"Idempotency-Key": uuid4().hex}, time.monotonic() + _PATIENCE_S
        while time.monotonic() < until:
            try:
                answer = http.post(_MESSAGES, params={"namespace": namespace}, json=body, headers=key)
            except httpx.TransportError:  # killed before it answered, or not there yet
                time.sleep(0.05)
                continue
            assert answer.status_code == 202, answer.text
            return
        raise AssertionError("the server does not come back")


def server_killed(folder: Path, model_url: str, kills: int, rng: random.Random) -> Toll:
    """Kill a server so often; then compare what is in its database with what it acknowledged."""
    toll, writers = Toll(), set[str]()
    with MemoryServer(folder, model_url, "--rest", "--session-turns", "8") as server:
        # a session that was being written at a kill blocks its namespace for the rest of its lease
        with Tellers(server.url, namespaces=8 + 2 * kills, pause_s=0.1) as tellers:
            for _ in range(kills):
                before, until = tellers.count, time.monotonic() + _PATIENCE_S
                while tellers.count < before + 2 * CLIENTS:  # sessions have ended and are being written
                    assert time.monotonic() < until, "no turn is acknowledged"
                    time.sleep(0.01)
                time.sleep(rng.uniform(0, 1.0))
                toll.strikes += server.stop(signal.SIGKILL) == -signal.SIGKILL
                writers |= _claimants(server.db)
                server.start()
        toll.notes.append(
            f"{tellers.count} turns acknowledged, {len(writers)} kills while a session was being written"
        )
        for namespace in tellers.told:
            ended = httpx.post(
                f"{server.url}{_MESSAGES}", params={"namespace": namespace}, json={"end": True}, timeout=60
            )
            assert ended.status_code == 202, ended.text
        _wait_until_written(server, toll)
    with BankStore(server.db) as store:
        for namespace, told in tellers.told.items():
            _compare(store, namespace, told, toll)
    return toll


def _claimants(db: str) -> set[str]:
    """Return the processes that were writing a session when they ended, killed ones from before included."""
    with BankStore(db) as store, store.database.reading() as connection:
        claimed = select(TURNS.c.claimed_by).where(TURNS.c.claimed_by.is_not(None)).distinct()
        return set(connection.scalars(claimed).all())


def _wait_until_written(server: MemoryServer, toll: Toll) -> None:
    until = time.monotonic() + _PATIENCE_S
    while waiting := httpx.get(f"{server.url}/health", timeout=60).json()["waiting_turns"]:
        if time.monotonic() > until:
            toll.half += 1
            toll.notes.append(f"{waiting} turns are never written")
            return
        time.sleep(0.2)


def _compare(store: BankStore, namespace: str, told: Sequence[ToldTurn], toll: Toll) -> None:
    space = store.load(namespace)
    sessions = [one.session for one in space.sessions.values()]
    found = [turn.text for session in sessions for turn in session.turns]
    toll.add(Counter(turn.text for turn in told), Counter(found))
    numbers = [re.findall(r"\d+x\d+", turn.text) for turn in told]
    remembered = [re.findall(r"\d+x\d+", memory.text) for memory in space.bank.live()]
    toll.add(Counter(chain(*numbers)), Counter(chain(*remembered)))
    if [session.number for session in sessions] != list(range(1, len(sessions) + 1)):
        toll.half += 1
        toll.notes.append(f"the sessions of {namespace} are not in order")
    by_text, latest_sent_s = {turn.text: turn for turn in told}, 0.0
    for turn in (by_text[text] for text in found if text in by_text):
        if turn.acknowledged_s < latest_sent_s:
            toll.half += 1
            toll.notes.append(f"a turn of {namespace} comes after one that was sent later")
        latest_sent_s = max(latest_sent_s, turn.sent_s)
