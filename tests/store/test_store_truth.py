"""Whatever is asked, fails or is cancelled, in whatever order: each caller learns the truth about its own request."""

from __future__ import annotations

import tempfile
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import outcome
import trio
from hypothesis import event, given, settings
from hypothesis import strategies as st
from store_kit import FIRST, NAME, Boom, Gate, add, add_then_fail, open_group, words_in, write_migrations
from trio.testing import MockClock, wait_all_tasks_blocked

from peen.errors import StorageError
from peen.store.database import Database
from peen.store.opening import open_direct
from peen.testing.faults import FaultKind, Faults, faulty_vfs

Kind = Literal["write", "submit", "raise", "cancelled before", "cancelled later", "twice"]
KINDS: st.SearchStrategy[Kind] = st.sampled_from(
    ["write", "submit", "raise", "cancelled before", "cancelled later", "twice"]
)
PLANS = st.lists(KINDS, min_size=1, max_size=14)
SEEDS = st.integers(0, 2**32 - 1)
FAULT_KINDS: st.SearchStrategy[FaultKind] = st.sampled_from(["full", "ioerr"])


@dataclass
class World:
    """What the callers did and were told."""

    asked: list[str] = field(default_factory=list)
    """Words in the order in which they were queued."""
    told: dict[str, Literal["written", "not written"]] = field(default_factory=dict)

    def tell(self, word: str, result: outcome.Outcome[int]) -> None:
        assert word not in self.told, "answered twice"
        self.told[word] = "written" if isinstance(result, outcome.Value) else "not written"

    @property
    def expected(self) -> list[str]:
        return [word for word in self.asked if self.told[word] == "written"]


async def ask(db: Database, world: World, word: str, *, fail: bool = False) -> None:
    """One write, whose outcome is recorded however it ends."""
    world.asked.append(word)  # `write` queues without giving up control, so this is the order of the queue
    try:
        number = await db.write(add_then_fail(word) if fail else add(word))
    except trio.Cancelled:
        world.tell(word, outcome.Error(Boom()))
        raise
    except StorageError as exc:
        world.tell(word, outcome.Error(exc))
    except Boom as exc:
        if not fail:
            raise  # the error of another request
        world.tell(word, outcome.Error(exc))
    else:
        world.tell(word, outcome.Value(number))


async def act(db: Database, world: World, number: int, kind: Kind) -> None:
    word = f"{number:02d} {kind}"
    match kind:
        case "write":
            await ask(db, world, word)
        case "twice":
            await ask(db, world, word)
            await ask(db, world, f"{word}, again")
        case "raise":
            await ask(db, world, word, fail=True)
        case "submit":
            world.asked.append(word)
            db.submit(add(word), lambda result: world.tell(word, result))
        case "cancelled before":
            with trio.CancelScope() as scope:
                scope.cancel()
                await ask(db, world, word)
            assert world.told[word] == "not written"
        case "cancelled later":
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, db, world, word)
                await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()


async def run_all(db: Database, world: World, plan: list[Kind]) -> None:
    async with trio.open_nursery() as nursery:
        for number, kind in enumerate(plan):
            nursery.start_soon(act, db, world, number, kind)


@settings(deadline=None, max_examples=300)
@given(plan=PLANS, seed=SEEDS, at=st.integers(1, 9), lasting=st.integers(1, 4), commit=st.booleans(), kind=FAULT_KINDS)
def test_without_threads_every_caller_knows_whether_its_row_is_on_disk(
    plan: list[Kind], seed: int, at: int, lasting: int, commit: bool, kind: FaultKind
) -> None:
    if commit:
        faults = Faults.failed_commit_at(at, lasting=lasting, kind=kind)
    else:
        faults = Faults.full_at(at, lasting=lasting) if kind == "full" else Faults.ioerr_at(at, lasting=lasting)

    async def main(path: Path, migrations: Path) -> World:
        world = World()
        async with open_direct(path, migrations=migrations, name=NAME, seed=seed, faults=faults) as db:
            await run_all(db, world, plan)
        return world

    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "small.db"
        trio._core._run._r.seed(seed)  # one seed, one order of tasks
        world = trio.run(main, path, write_migrations(Path(name) / "m", FIRST), clock=MockClock(autojump_threshold=0))

        event(f"faults met: {faults.fired > 0}")
        assert words_in(path) == world.expected


@settings(deadline=None, max_examples=150)
@given(
    plan=PLANS,
    seed=SEEDS,
    gated=st.booleans(),
    at=st.integers(1, 8),
    lasting=st.integers(1, 3),
    what=st.sampled_from(["write", "sync", "nothing"]),
    kind=FAULT_KINDS,
)
def test_with_the_writer_thread_every_caller_knows_whether_its_row_is_on_disk(
    plan: list[Kind], seed: int, gated: bool, at: int, lasting: int, what: str, kind: FaultKind
) -> None:
    async def main(opened: AbstractAsyncContextManager[Database]) -> World:
        world = World()
        async with opened as db:
            gate = Gate()
            if gated:
                db.submit(gate, lambda _result: None)
            if what == "write":
                vfs.arm(write=at, kind=kind, lasting=lasting)
            elif what == "sync":
                vfs.arm(sync=at, kind=kind, lasting=lasting)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run_all, db, world, plan)
                if gated:
                    await wait_all_tasks_blocked()
                    gate.open()
        return world

    with tempfile.TemporaryDirectory() as name, faulty_vfs("truth") as vfs:
        path = Path(name) / "small.db"
        trio._core._run._r.seed(seed)
        world = trio.run(main, open_group(path, write_migrations(Path(name) / "m", FIRST), vfs="truth"))

        event(f"faults met: {vfs.fired > 0}")
        assert words_in(path) == world.expected
