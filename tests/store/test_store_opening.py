"""Opening: what is made, what is migrated, and what is refused without changing a byte."""

# Nothing else runs on the loop of these tests, so looking at files may block it.
# ruff: noqa: ASYNC221, ASYNC240

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from disk_kit import fill, tiny_disk
from store_kit import (
    FIRST,
    NAME,
    SECOND,
    add,
    open_group,
    open_inline,
    words_in,
    write_migrations,
)

from peen.errors import StorageDamaged, StorageError, StorageFailed, StorageFull, StorageNewer, StorageNotWritable
from peen.store.migrate import load_migrations

AS_ROOT = os.geteuid() == 0
NOBODY = 65534


@pytest.fixture
def migrations(tmp_path: Path) -> Path:
    return write_migrations(tmp_path / "migrations", FIRST)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the database lives, and nothing else."""
    directory = tmp_path / "state"
    directory.mkdir()
    return directory


@pytest.fixture
def path(folder: Path) -> Path:
    return folder / "small.db"


async def make(path: Path, migrations: Path, *words: str) -> None:
    async with open_group(path, migrations) as db:
        for word in words:
            await db.write(add(word))


async def make_as_after_a_kill(path: Path, migrations: Path, *words: str) -> None:
    """The database and its log, as a process leaves them that is killed after its last commit."""
    original = path.with_name("original.db")
    async with open_group(original, migrations) as db:
        for word in words:
            await db.write(add(word))
        for ending in ("", "-wal"):
            shutil.copy(original.with_name(original.name + ending), path.with_name(path.name + ending))
    original.unlink()


def content(directory: Path) -> dict[str, str]:
    """SHA-256 of every file, except the one of shared memory, which holds nothing that lasts."""
    return {
        each.name: hashlib.sha256(each.read_bytes()).hexdigest()
        for each in sorted(directory.iterdir())
        if not each.name.endswith("-shm")
    }


def pragma(path: Path, name: str) -> object:
    connection = apsw.Connection(str(path))
    try:
        return connection.pragma(name)
    finally:
        connection.close()


def modes(directory: Path) -> dict[str, int]:
    return {each.name: stat.S_IMODE(each.stat().st_mode) for each in directory.iterdir()}


async def refusal(path: Path, migrations: Path) -> StorageError:
    """What opening `path` raises; it names the file."""
    with pytest.raises(StorageError) as caught:
        await make(path, migrations)
    assert str(path) in str(caught.value)
    return caught.value


# --- making and finding -----------------------------------------------------------------------------------------------


async def test_a_new_database_has_the_settings_that_cannot_be_changed_later(path: Path, migrations: Path) -> None:
    await make(path, migrations, "one")

    assert [pragma(path, name) for name in ("page_size", "auto_vacuum", "user_version", "journal_mode")] == [
        4096,
        2,
        1,
        "wal",
    ]
    assert pragma(path, "application_id") != 0
    assert words_in(path) == ["one"]


@pytest.mark.parametrize(("synchronous", "level"), [("FULL", 2), ("NORMAL", 1)])
async def test_the_writer_has_its_settings_at_every_opening(
    path: Path, migrations: Path, synchronous: str, level: int
) -> None:
    names = ("foreign_keys", "busy_timeout", "journal_mode", "synchronous", "wal_autocheckpoint")
    for _ in range(2):
        async with open_group(path, migrations, synchronous=synchronous) as db:
            found = [await db.write(lambda tx, name=name: tx.row(f"PRAGMA {name}")) for name in names]  # type: ignore[misc]

        assert found == [(1,), (5000,), ("wal",), (level,), (0,)]


async def test_only_the_owner_can_read_the_files(path: Path, folder: Path, migrations: Path) -> None:
    old = os.umask(0)
    try:
        async with open_group(path, migrations, reserve_bytes=4096) as db:
            await db.write(add("one"))
            found = modes(folder)
    finally:
        os.umask(old)

    assert found == dict.fromkeys(("small.db", "small.db-wal", "small.db-shm", "small.db.reserve"), 0o600)


async def test_a_file_that_others_could_read_is_closed_to_them(path: Path, folder: Path, migrations: Path) -> None:
    await make(path, migrations, "one")
    path.chmod(0o644)

    await make(path, migrations)

    assert modes(folder) == {"small.db": 0o600}


async def test_what_was_committed_before_a_kill_is_there_at_the_next_opening(path: Path, migrations: Path) -> None:
    await make_as_after_a_kill(path, migrations, "one", "two")

    await make(path, migrations, "three")

    assert words_in(path) == ["one", "two", "three"]


async def test_a_creation_that_was_killed_half_way_is_begun_anew(path: Path, folder: Path, migrations: Path) -> None:
    path.with_name("small.db.new").write_bytes(b"half a database")
    path.with_name("small.db.new-journal").write_bytes(b"half a journal")

    await make(path, migrations, "one")

    assert list(content(folder)) == ["small.db"]


async def test_an_empty_file_becomes_a_database(path: Path, migrations: Path) -> None:
    path.touch()

    await make(path, migrations, "one")

    assert words_in(path) == ["one"]


async def test_both_variants_read_each_other_s_files(path: Path, migrations: Path) -> None:
    await make(path, migrations, "one")
    async with open_inline(path, migrations) as db:
        await db.write(add("two"))
    await make(path, migrations, "three")

    assert words_in(path) == ["one", "two", "three"]


# --- migrating --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("killed", [False, True])
async def test_an_older_database_is_migrated_after_a_copy_was_made(
    path: Path, folder: Path, migrations: Path, killed: bool
) -> None:
    await (make_as_after_a_kill if killed else make)(path, migrations, "one", "two")
    write_migrations(migrations, FIRST, SECOND)

    async with open_group(path, migrations) as db:
        assert db.reader.rows("SELECT entry_no FROM page") == [(1,), (2,)]

    copy = folder / "small.db.v1.bak"
    assert (pragma(path, "user_version"), pragma(copy, "user_version")) == (2, 1)
    assert words_in(copy) == ["one", "two"]
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("CREATE TABLE extra (x) STRICT;", r"0003_step\.sql failed"),
        ("CREATE TABLE extra (x INTEGER) STRICT; COMMIT;", r"0003_step\.sql failed: .*not authorized"),
        ("INSERT INTO page (entry_no) VALUES (99);", r"0003_step\.sql breaks 1 foreign keys"),
    ],
)
@pytest.mark.parametrize("killed", [False, True])
async def test_a_migration_that_fails_leaves_everything_as_it_was(
    path: Path, folder: Path, migrations: Path, script: str, problem: str, killed: bool
) -> None:
    await (make_as_after_a_kill if killed else make)(path, migrations, "one")
    before = content(folder)
    write_migrations(migrations, FIRST, SECOND, script)

    with pytest.raises(StorageFailed, match=problem):
        await make(path, migrations)

    after = content(folder)
    if after.get("small.db-wal") != before.get("small.db-wal"):  # no longer in use, or empty
        assert path.with_name("small.db-wal").stat().st_size == 0
    assert after["small.db"] == before["small.db"]
    assert {name for name in after if not name.endswith("-wal")} == {"small.db"}
    assert words_in(path) == ["one"]


async def test_a_first_migration_that_fails_leaves_no_file(path: Path, folder: Path, migrations: Path) -> None:
    write_migrations(migrations, FIRST, "CREATE TABLE wrong (x) STRICT;")

    assert isinstance(await refusal(path, migrations), StorageFailed)

    assert content(folder) == {}


def test_migrations_with_a_gap_are_a_mistake_of_the_release(tmp_path: Path) -> None:
    directory = write_migrations(tmp_path / "migrations", FIRST, SECOND, SECOND)
    (directory / "0002_step.sql").unlink()

    with pytest.raises(ValueError, match="without a gap"):
        load_migrations(directory)


# --- refusing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("killed", [False, True])
async def test_a_database_of_a_later_release_is_refused_unchanged(
    path: Path, folder: Path, tmp_path: Path, migrations: Path, killed: bool
) -> None:
    later = write_migrations(tmp_path / "later", FIRST, SECOND)
    await (make_as_after_a_kill if killed else make)(path, later, "one")
    before = content(folder)

    error = await refusal(path, migrations)

    assert isinstance(error, StorageNewer)
    assert "schema 2, this one knows 1" in str(error)
    assert content(folder) == before
    await make(path, later, "two")
    assert words_in(path) == ["one", "two"]


async def test_a_database_of_another_application_is_refused_unchanged(
    path: Path, folder: Path, migrations: Path
) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE theirs (x); PRAGMA application_id = 77")
    connection.close()
    before = content(folder)

    error = await refusal(path, migrations)

    assert isinstance(error, StorageDamaged)
    assert f"another application, not {NAME}'s" in str(error)
    assert content(folder) == before


async def test_a_file_that_is_no_database_is_refused_unchanged(path: Path, folder: Path, migrations: Path) -> None:
    path.write_text("the shopping list\n" * 500)
    before = content(folder)

    assert isinstance(await refusal(path, migrations), StorageDamaged)

    assert content(folder) == before


@pytest.mark.parametrize("page", range(2, 8))
async def test_a_page_that_was_overwritten_is_found_before_anything_is_changed(
    path: Path, folder: Path, migrations: Path, page: int
) -> None:
    await make(path, migrations, *(f"{number:03d} {'x' * 300}" for number in range(60)))
    with path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xa5" * 4096)
    before = content(folder)

    assert isinstance(await refusal(path, migrations), StorageDamaged)

    assert content(folder) == before


async def test_a_file_that_was_cut_is_refused_unchanged(path: Path, folder: Path, migrations: Path) -> None:
    await make(path, migrations, *(f"{number:03d} {'x' * 300}" for number in range(60)))
    os.truncate(path, path.stat().st_size // 2)
    before = content(folder)

    assert isinstance(await refusal(path, migrations), StorageDamaged)

    assert content(folder) == before


async def test_rows_that_refer_to_nothing_are_damage(path: Path, tmp_path: Path) -> None:
    both = write_migrations(tmp_path / "both", FIRST, SECOND)
    await make(path, both, "one")
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA foreign_keys = OFF; INSERT INTO page (entry_no) VALUES (99)")
    connection.close()

    error = await refusal(path, both)

    assert isinstance(error, StorageDamaged)
    assert "1 rows refer to rows that are missing, first in page" in str(error)


async def test_a_log_without_its_database_is_not_thrown_away(path: Path, folder: Path, migrations: Path) -> None:
    await make_as_after_a_kill(path, migrations, "one")
    path.unlink()
    before = content(folder)

    error = await refusal(path, migrations)

    assert isinstance(error, StorageDamaged)
    assert "the database is missing, but small.db-wal holds changes to it" in str(error)
    assert content(folder) == before


async def test_a_symbolic_link_is_refused(path: Path, folder: Path, migrations: Path) -> None:
    await make(path, migrations, "one")
    link = folder / "link.db"
    link.symlink_to(path)

    error = await refusal(link, migrations)

    assert isinstance(error, StorageNotWritable)
    assert "symbolic link" in str(error)


@pytest.mark.parametrize("name", ["what?.db", "number#1.db"])
async def test_a_path_with_a_sign_that_means_something_else_is_refused(
    folder: Path, migrations: Path, name: str
) -> None:
    error = await refusal(folder / name, migrations)

    assert isinstance(error, StorageNotWritable)
    assert "must not contain" in str(error)
    assert content(folder) == {}


async def test_a_directory_that_is_missing_or_in_the_way_is_refused(folder: Path, migrations: Path) -> None:
    assert "does not exist" in str(await refusal(folder / "missing" / "small.db", migrations))
    (folder / "taken.db").mkdir()
    assert "not a plain file" in str(await refusal(folder / "taken.db", migrations))


# --- disks ------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not AS_ROOT, reason="only root can mount a small disk")
async def test_a_full_disk_leaves_no_half_a_database(tmp_path: Path, migrations: Path) -> None:
    with tiny_disk(tmp_path / "disk", kib=64) as disk:
        filler = fill(disk)

        error = await refusal(disk / "small.db", migrations)

        assert isinstance(error, StorageFull)
        assert os.listdir(disk) == ["filler"]
        filler.unlink()
        await make(disk / "small.db", migrations, "one")


@pytest.mark.skipif(not AS_ROOT, reason="only root can mount a read-only disk")
@pytest.mark.parametrize("exists", [False, True])
async def test_a_read_only_disk_is_refused(tmp_path: Path, migrations: Path, exists: bool) -> None:
    with tiny_disk(tmp_path / "disk", kib=256) as disk:
        if exists:
            await make(disk / "small.db", migrations, "one")
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        before = content(disk)

        assert isinstance(await refusal(disk / "small.db", migrations), StorageNotWritable)

        assert content(disk) == before


_OPEN_AS_NOBODY = """
import os, sys, trio
from pathlib import Path
from store_kit import open_group
from peen.errors import PeenError

async def main():
    try:
        async with open_group(Path(sys.argv[1]), Path(sys.argv[2])):
            print("opened")
    except PeenError as error:
        print(type(error).__name__, error)

if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
trio.run(main)
"""


def open_as_nobody(path: Path, migrations: Path) -> str:
    """What a process without privileges makes of it."""
    search = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[2])])
    result = subprocess.run(
        [sys.executable, "-c", _OPEN_AS_NOBODY, str(path), str(migrations)],
        env={**os.environ, "PYTHONPATH": search},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.fixture
def public(tmp_path: Path) -> Iterator[Path]:
    """A directory that a process without privileges can reach and, until it is changed, write."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name) / "state"
        directory.mkdir()
        Path(name).chmod(0o755)
        write_migrations(Path(name) / "migrations", FIRST)
        if AS_ROOT:
            os.chown(directory, NOBODY, NOBODY)
        yield directory
        directory.chmod(0o700)


async def test_a_file_that_must_not_be_written_is_refused(public: Path) -> None:
    path, migrations = public / "small.db", public.parent / "migrations"
    assert open_as_nobody(path, migrations) == "opened"
    path.chmod(0o400)
    before = content(public)

    assert open_as_nobody(path, migrations).startswith(f"StorageNotWritable {path}: ")

    assert content(public) == before
    path.chmod(0o000)
    assert open_as_nobody(path, migrations).startswith(f"StorageNotWritable {path}: ")


@pytest.mark.parametrize("exists", [False, True])
async def test_a_directory_that_must_not_be_written_is_refused(public: Path, exists: bool) -> None:
    path, migrations = public / "small.db", public.parent / "migrations"
    if exists:
        assert open_as_nobody(path, migrations) == "opened"
    public.chmod(0o500)
    before = content(public)

    assert open_as_nobody(path, migrations).startswith(f"StorageNotWritable {path}: ")

    assert content(public) == before
