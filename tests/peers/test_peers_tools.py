"""File tools through the whole program: controller, worker process, socket."""

from __future__ import annotations

from crash_kit import Client, script, scripted_daemon, short_directory


def patch(*lines: str) -> str:
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch"])


def edit(old: str, new: str) -> dict[str, object]:
    return {"name": "editFile", "arguments": {"path": "a", "edits": [{"old": old, "new": new}]}}


SCRIPT = script(
    {
        "patches": [[
            {"calls": [{"name": "readFile", "arguments": {"path": name}} for name in ("a", "b")]},
            {"calls": [
                edit("one", "1"),
                edit("two", "2"),
                {"name": "applyPatch", "arguments": {"patch": patch(
                    "*** Update File: a", "@@", "-three", "+3", "*** Delete File: b", "*** Add File: c/d", "+new",
                )}},
                edit("four", "4"),
            ]},
            {"calls": [{"name": "applyPatch", "arguments": {"patch": patch(
                "*** Update File: a", "@@", "-1", "+x", "*** Add File: c/d", "+newer",
            )}}]},
            {"text": "done"},
        ]],
    }
)  # fmt: skip


def test_parallel_changes_of_one_file_are_all_on_disk_and_a_refused_patch_changes_nothing() -> None:
    with short_directory() as home, scripted_daemon(home, SCRIPT) as daemon, Client(daemon) as client:
        workspace = daemon.workspace_root / "w"
        workspace.mkdir()
        (workspace / "a").write_bytes(b"one\r\ntwo\r\nthree\r\nfour")
        (workspace / "b").write_bytes(b"gone\n")
        session = client.open(workspace)

        frames = client.ask(session, "change them", model="scripted/patches")

        results = [frame["data"] for frame in frames if frame["type"] == "tool.result"]
        assert [result["isError"] for result in results] == [False] * 6 + [True]
        assert (workspace / "a").read_bytes() == b"1\r\n2\r\n3\r\n4"
        assert (workspace / "c/d").read_bytes() == b"new\n"
        assert sorted(path.name for path in workspace.rglob("*")) == ["a", "c", "d"]
