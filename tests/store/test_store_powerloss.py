"""The power goes: what was not synced is gone, in whole or in part. Whatever was acknowledged is there afterwards."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import apsw
import trio
from store_kit import FIRST, add, open_group, words_in, write_migrations

from peen.errors import StorageError
from peen.store.connect import Synchronous
from peen.store.database import Database

WRITERS: Final = 3
EACH: Final = 4
BODY_BYTES: Final = 3000  # so that a commit takes several pages
SECTOR_BYTES: Final = 512
LUCK: Final = range(3)
"""Seeds for what reaches the disk of the writes that were not synced."""


class PowerLost(apsw.IOError):
    """The machine is off: nothing can be read or written any more."""


class Drive:
    """Files as a drive holds them: what was synced, and what only the machine's memory knows.

    `cut_at` is the sync, counted from 1, in whose middle the power goes: of the writes that were not synced, in the
    order in which they were made, `kept` decides which reached the disk, each sector on its own.
    """

    def __init__(self, cut_at: int, kept: random.Random) -> None:
        self.cut_at, self.kept = cut_at, kept
        self.syncs = 0
        self.is_off = False
        self.unsynced: dict[str, list[tuple[int, bytes | None]]] = {}
        """By file: writes, each with its offset, and sizes to which the file was cut (without bytes)."""
        self.durable: dict[str, bytearray] = {}

    def wrote(self, name: str, offset: int, data: bytes) -> None:
        self.check()
        self.unsynced.setdefault(name, []).append((offset, data))

    def truncated(self, name: str, size: int) -> None:
        self.check()
        self.unsynced.setdefault(name, []).append((size, None))

    def synced(self, name: str) -> None:
        self.check()
        self.syncs += 1
        if self.syncs == self.cut_at:
            self.is_off = True
            for each in list(self.unsynced):
                self._settle(each, whole=False)
        self.check()
        self._settle(name, whole=True)

    def check(self) -> None:
        if self.is_off:
            raise PowerLost("the power is off")

    def _settle(self, name: str, *, whole: bool) -> None:
        content = self.durable.setdefault(name, bytearray())
        for offset, data in self.unsynced.pop(name, []):
            if data is None:
                if whole or self.kept.random() < 0.5:
                    del content[offset:]
                continue
            for at in range(0, len(data), SECTOR_BYTES):
                if whole or self.kept.random() < 0.5:
                    sector = data[at : at + SECTOR_BYTES]
                    end = offset + at + len(sector)
                    content.extend(bytes(max(0, end - len(content))))
                    content[offset + at : end] = sector


class DriveVFS(apsw.VFS):
    """The default file system, noted down on a drive."""

    def __init__(self, name: str, drive: Drive) -> None:
        self.name, self.drive = name, drive
        super().__init__(name, "")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        return _DriveFile(self.drive, name, flags)


class _DriveFile(apsw.VFSFile):
    def __init__(self, drive: Drive, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._drive = drive
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        self._name = "" if path is None else Path(path).name
        super().__init__("", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        self._drive.wrote(self._name, offset, data)
        super().xWrite(data, offset)

    def xTruncate(self, size: int) -> None:
        self._drive.truncated(self._name, size)
        super().xTruncate(size)

    def xSync(self, flags: int) -> None:
        self._drive.synced(self._name)
        super().xSync(flags)


@contextmanager
def on_drive(drive: Drive) -> Iterator[str]:
    vfs = DriveVFS("power", drive)
    try:
        yield vfs.name
    finally:
        vfs.unregister()


async def write_words(path: Path, migrations: Path, drive: Drive, synchronous: Synchronous) -> list[str]:
    """Write from several tasks until all is written, and close; the words that were acknowledged before the cut."""
    acknowledged: list[str] = []

    async def write(db: Database, writer: int) -> None:
        for number in range(EACH):
            word = f"word {writer}.{number}"
            with suppress(StorageError):
                await db.write(add(word, body_bytes=BODY_BYTES))
                if not drive.is_off:
                    acknowledged.append(word)

    with on_drive(drive) as vfs, suppress(StorageError):
        async with (
            open_group(path, migrations, vfs=vfs, synchronous=synchronous) as db,
            trio.open_nursery() as nursery,
        ):
            for writer in range(WRITERS):
                nursery.start_soon(write, db, writer)
    return acknowledged


async def after_power_loss(
    directory: Path, migrations: Path, *, cut_at: int, luck: int, synchronous: Synchronous = "FULL"
) -> tuple[list[str], list[str], bool]:
    """The words that were acknowledged, those that a fresh start finds, and whether there was such a sync at all."""
    path = directory / "before" / "words.db"
    path.parent.mkdir(parents=True)
    async with open_group(path, migrations):
        pass  # made, and safely on the disk
    drive = Drive(cut_at, random.Random(cut_at * 100 + luck))
    drive.durable[path.name] = bytearray(path.read_bytes())

    acknowledged = await write_words(path, migrations, drive, synchronous)

    found = directory / "after" / path.name
    found.parent.mkdir()
    for name, content in drive.durable.items():
        (found.parent / name).write_bytes(content)
    async with open_group(found, migrations):
        pass  # it is looked through at every opening, and refused if it is not sound
    return acknowledged, words_in(found), drive.is_off


async def test_what_was_acknowledged_is_there_after_a_power_cut_at_any_sync(tmp_path: Path) -> None:
    migrations = write_migrations(tmp_path / "migrations", FIRST)
    written = WRITERS * EACH
    cuts = 0
    for cut_at in range(1, 1000):
        for luck in LUCK:
            directory = tmp_path / f"{cut_at}.{luck}"
            acknowledged, found, was_cut = await after_power_loss(directory, migrations, cut_at=cut_at, luck=luck)

            assert set(acknowledged) <= set(found), f"lost at sync {cut_at}, luck {luck}"
            assert all(f"word {word[5]}.{before}" in found for word in found for before in range(int(word[7])))
            assert was_cut or len(found) == written
            cuts += was_cut
        if not was_cut:  # no sync was left
            break

    assert cuts >= EACH * len(LUCK)


async def test_the_drive_notices_a_store_that_does_not_sync_its_commits(tmp_path: Path) -> None:
    migrations = write_migrations(tmp_path / "migrations", FIRST)
    lost: set[str] = set()
    for luck in range(8):
        acknowledged, found, _ = await after_power_loss(
            tmp_path / str(luck), migrations, cut_at=2, luck=luck, synchronous="NORMAL"
        )
        lost |= set(acknowledged) - set(found)

    assert lost
