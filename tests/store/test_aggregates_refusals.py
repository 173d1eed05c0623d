"""What a model does not take back: images and reasoning, each up to a message, and those of a store from before."""

from __future__ import annotations

from functools import partial
from importlib import resources
from pathlib import Path
from typing import Final

from store_kit import write_migrations
from test_aggregates_spending import old_rows
from world_kit import AT_MS, make_home, open_store, open_turn

from peen.store import images, reasoning, sessions
from peen.store.database import Tx
from peen.store.direct import MemoryFile
from peen.store.opening import open_direct
from peen.wire.records import RefusedImage

FIRST, SECOND = "aa" * 32, "bb" * 32
SEEING: Final = "up/seeing"
BLIND: Final = "up/blind"


async def test_an_image_that_one_model_refuses_another_may_take() -> None:
    async with open_store() as db:
        home = await make_home(db)
        opened = await open_turn(db, home)
        for digest, sequence in ((FIRST, 3), (SECOND, 4), (FIRST, 7)):
            refuse = partial(
                images.refuse, session_no=home.no, refused=RefusedImage(sha256=digest, reason=f"no {sequence}"),
                model=BLIND, up_to_sequence=sequence, turn_no=opened.turn, at_ms=AT_MS,
            )  # fmt: skip
            await db.write(refuse)

        assert images.refused(db.reader, home.no, SEEING) == []
        assert images.refused(db.reader, home.no, BLIND) == [
            RefusedImage(sha256=FIRST, reason="no 7", up_to_sequence=7),
            RefusedImage(sha256=SECOND, reason="no 4", up_to_sequence=4),
        ]


async def test_reasoning_is_refused_up_to_the_latest_message_and_by_its_model_alone() -> None:
    async with open_store() as db:
        home = await make_home(db)
        for sequence in (5, 9, 7):
            await db.write(partial(reasoning.refuse, session_no=home.no, model=BLIND, up_to_sequence=sequence))

        assert reasoning.refused_up_to(db.reader, home.no, BLIND) == 9
        assert reasoning.refused_up_to(db.reader, home.no, SEEING) == 0


async def test_a_refusal_from_before_is_of_the_model_of_its_turn_and_without_a_turn_forgotten(tmp_path: Path) -> None:
    ours = sorted((resources.files("peen.store") / "migrations").iterdir(), key=lambda each: each.name)
    before = [each.read_text() for each in ours if each.name < "0014"]
    file = MemoryFile()
    async with open_direct(file, migrations=write_migrations(tmp_path / "old", *before), name="peen", seed=1) as db:
        await db.write(old_rows)
        await db.write(old_refusals)
        ((model,),) = db.reader.rows("SELECT model FROM turn WHERE no = 1")

    async with open_store(file, seed=2) as db:
        found = sessions.by_workspace(db.reader, "/srv/old")
        assert found is not None
        of_turn = images.refused(db.reader, found.no, model)
        of_all = images.refused(db.reader, found.no)

    assert of_turn == of_all == [RefusedImage(sha256=FIRST, reason="broken", up_to_sequence=2)]


def old_refusals(tx: Tx) -> None:
    for digest, turn_no in ((FIRST, 1), (SECOND, None)):
        tx.execute(
            "INSERT INTO refused_image (session_no, sha256, up_to_sequence, turn_no, reason, at_ms) "
            "SELECT session_no, ?, 2, ?, 'broken', 5 FROM turn WHERE no = 1",
            (bytes.fromhex(digest), turn_no),
        )
