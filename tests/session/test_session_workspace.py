"""Which directories may be workspaces."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peen.errors import Refused, ValidationFailed, WorkspaceNotAllowed, WorkspaceNotFound
from peen.session.workspace import WorkspacePolicy


class World:
    """A root with a project in it, Peen's own directories, and a neighbour outside."""

    def __init__(self, tmp_path: Path) -> None:
        self.base = Path(os.path.realpath(tmp_path))
        self.root = self.base / "root"
        self.project = self.root / "project"
        self.state = self.root / "own" / "state"
        self.config = self.root / "own2" / "config"
        self.outside = self.base / "root-neighbour"
        for path in (self.project / "src", self.state / "deep", self.config / "deep", self.outside / "secret"):
            path.mkdir(parents=True)
        self.policy = WorkspacePolicy(self.root, self.state, self.config)

    def refusal(self, text: str | Path) -> Refused:
        with pytest.raises(Refused) as caught:
            self.policy.resolve(str(text))
        return caught.value


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture(scope="module")
def linked_world(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("linked"))
    (world.root / "link").symlink_to("project")
    (world.project / "link").symlink_to(world.state / "deep")
    (world.root / "out").symlink_to(world.outside)
    return world


def test_a_workspace_that_is_still_there_passes_the_second_look(world: World) -> None:
    world.policy.check_again(str(world.project))


@pytest.mark.parametrize("now", ["gone", "a link", "a link to the outside", "a file"])
def test_a_workspace_that_was_moved_or_replaced_is_not_worked_in(world: World, now: str) -> None:
    world.project.rename(world.root / "moved")
    if now == "a file":
        world.project.write_text("")
    elif now != "gone":
        world.project.symlink_to(world.outside if "outside" in now else world.root / "moved")

    with pytest.raises(Refused, match="the session's workspace"):
        world.policy.check_again(str(world.project))


def test_the_root_itself_needs_to_hold_nothing_of_peen(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    policy = WorkspacePolicy(root, tmp_path / "state", tmp_path / "config")

    assert policy.resolve(str(root)) == root
    assert policy.root == root


def test_every_name_of_a_directory_is_one_workspace(world: World) -> None:
    (world.root / "link").symlink_to("project")
    (world.root / "far").symlink_to(world.project / "src")
    root = str(world.root)

    names = ["project", "project/", "project//", "/project", "./project/.", "link", "link/", "project/src/..",
             "link/../project", "far/..", "own/../project", "gone/../project"]  # fmt: skip
    assert {world.policy.resolve(f"{root}/{name}") for name in names} == {world.project}
    assert world.policy.resolve(f"/{world.project}") == world.project


def test_a_root_that_is_a_link_is_known_by_both_names(world: World) -> None:
    alias = world.base / "alias"
    alias.symlink_to(world.root)
    policy = WorkspacePolicy(alias, world.state, world.config)

    assert policy.resolve(str(alias / "project")) == world.project
    assert policy.resolve(str(world.project)) == world.project
    assert policy.root == world.root


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "must not be empty"),
        ("project", "must be an absolute path"),
        ("~/project", "must be an absolute path"),
        ("{root}/pro\0ject", "must not hold a NUL character"),
        ("{root}/\udcff", "must be valid UTF-8"),
        ("{root}/" + "x" * 256, "is too long"),
        ("{root}" + "/x" * 2048, "is too long"),
        ("{root}/file", "is not a directory"),
        ("{root}/file/", "is not a directory"),
        ("{root}/loop", "is a loop of symbolic links"),
        ("{root}/loop/x", "cannot be opened"),
        ("{root}/latin", "not valid UTF-8"),
    ],
)
def test_a_text_that_names_no_directory_is_invalid(world: World, text: str, problem: str) -> None:
    (world.root / "file").write_text("")
    (world.root / "loop").symlink_to("loop")
    (world.root / "caf\udce9").mkdir()
    (world.root / "latin").symlink_to("caf\udce9")

    refusal = world.refusal(text.replace("{root}", str(world.root)))

    assert isinstance(refusal, ValidationFailed)
    assert problem in refusal.message
    assert refusal.message.startswith("workspace: ")


@pytest.mark.parametrize("text", ["gone", "gone/deeper", "dangling", "file/below"])
def test_a_directory_missing_inside_the_root_is_not_found(world: World, text: str) -> None:
    (world.root / "dangling").symlink_to("gone")
    (world.root / "file").write_text("")

    refusal = world.refusal(f"{world.root}/{text}")

    assert isinstance(refusal, WorkspaceNotFound)
    assert refusal.message == "workspace directory does not exist"


@pytest.mark.parametrize(
    "text", ["/", "/etc", "{base}", "{root}/..", "{root}-neighbour", "{root}/../root-neighbour", "{root}/gone/../../x",
             "{root}/out", "{root}/out/secret", "{root}/out/gone", "{root}/sly/../secret", "{root}/sly/../gone"],
)  # fmt: skip
def test_what_lies_outside_is_not_allowed_whether_it_exists_or_not(world: World, text: str) -> None:
    (world.root / "out").symlink_to(world.outside)
    (world.root / "sly").symlink_to(world.outside / "secret")

    refusal = world.refusal(text.replace("{root}", str(world.root)).replace("{base}", str(world.base)))

    assert isinstance(refusal, WorkspaceNotAllowed)


def test_a_text_outside_the_root_causes_no_look_at_the_disk(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def looked(*_args: object, **_options: object) -> None:
        raise AssertionError("looked at the disk")

    with monkeypatch.context() as patch:
        for name in ("stat", "lstat", "readlink", "open", "scandir"):
            patch.setattr(os, name, looked)
        refusals = [world.refusal("/etc"), world.refusal(f"{world.root}/../x"), world.refusal("x"), world.refusal("")]

    assert [type(refusal) for refusal in refusals] == [
        WorkspaceNotAllowed, WorkspaceNotAllowed, ValidationFailed, ValidationFailed,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    ["own/state", "own", "own/state/deep", "own/state/gone", ".", "to-state", "own2/config", "own2", "to-config"],
)
def test_the_directories_of_peen_are_out_of_reach(world: World, text: str) -> None:
    (world.root / "to-state").symlink_to(world.state / "deep")
    (world.root / "to-config").symlink_to(world.config)

    assert isinstance(world.refusal(f"{world.root}/{text}"), WorkspaceNotAllowed)


def test_inside_the_configuration_work_is_possible(world: World) -> None:
    assert world.policy.resolve(str(world.config / "deep")) == world.config / "deep"


def test_a_state_directory_behind_a_link_is_out_of_reach_by_its_real_name_too(world: World) -> None:
    (world.base / "state-link").symlink_to(world.project / "src")
    policy = WorkspacePolicy(world.root, world.base / "state-link", world.config)

    for text in (world.project, world.project / "src"):
        with pytest.raises(WorkspaceNotAllowed):
            policy.resolve(str(text))


def test_no_refusal_tells_anything_about_the_deployment(world: World) -> None:
    (world.root / "out").symlink_to(world.outside)
    not_allowed = {
        world.refusal(text).message for text in ("/etc", world.root / "out", world.state, world.config, world.root)
    }

    assert len(not_allowed) == 1
    assert str(world.root) not in not_allowed.pop()


@given(st.lists(st.sampled_from(["project", "src", "..", ".", "", "link", "out", "own", "state", "gone"]), max_size=7))
def test_what_is_accepted_is_canonical_and_inside(linked_world: World, parts: list[str]) -> None:
    world = linked_world
    try:
        found = world.policy.resolve("/".join([str(world.root), *parts]))
    except Refused:
        return

    assert str(found) == os.path.realpath(found)
    assert found.is_dir()
    assert found.is_relative_to(world.root)
    assert not found.is_relative_to(world.state)
    assert not world.state.is_relative_to(found)
    assert world.policy.resolve(str(found)) == found
