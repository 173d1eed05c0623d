"""What one agent knows of the files around it: the proof that a file was read before it is changed.

A path is known by the hash of its content when the agent read or wrote it, or by its mere existence when it was
listed, until the agent itself removes it. Each observation has a revision that grows with every new one of the agent,
so that observations of parallel calls can be put together in any order and give the same ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from peen.tool.outline import Outline

MAX_OUTLINED_LINES: Final = 32_768
"""Of all files that one agent knows, four bytes each: the oldest outlines go first."""


class LedgerConflict(Exception):
    """Two observations claim one revision of one path with different content: they are not of one agent's history."""

    def __init__(self, path: str, revision: int) -> None:
        super().__init__(f"{path}: two different contents at revision {revision}")
        self.path, self.revision = path, revision


class Observation(msgspec.Struct, frozen=True, array_like=True):
    """One known path: symlink-resolved and absolute. `sha256` is None where only the existence is known.

    `gone` takes back all that was known at this revision or before: the agent removed the path, or moved it away.
    """

    path: str
    sha256: str | None
    revision: int
    gone: bool = False


class LedgerDelta(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Observations to be saved and applied again. It is also the form of a whole ledger."""

    observations: tuple[Observation, ...] = ()


class _Known(msgspec.Struct, frozen=True):
    """The newest observation of each kind of one path: enough to add older and newer ones in any order."""

    content: Observation | None = None
    existence: Observation | None = None
    gone: Observation | None = None

    def plus(self, other: Observation) -> _Known:
        """Raises: LedgerConflict."""
        if other.gone:
            return msgspec.structs.replace(self, gone=_newer(self.gone, other))
        if other.sha256 is None:
            return msgspec.structs.replace(self, existence=_newer(self.existence, other))
        return msgspec.structs.replace(self, content=_newer(self.content, other))

    @property
    def counting(self) -> Observation | None:
        """What holds now. A hash is never replaced by mere existence, however much newer that is."""
        since = self.gone.revision if self.gone is not None else -1
        if self.content is not None and self.content.revision > since:
            return self.content
        return self.existence if self.existence is not None and self.existence.revision > since else None

    def observations(self) -> Iterator[Observation]:
        """The fewest that say the same, whatever they will be merged with."""
        since = -1
        for newest in (self.gone, self.content, self.existence):
            if newest is not None and newest.revision > since:
                since = newest.revision
                yield newest


class _State:
    """What all views of one ledger share."""

    def __init__(self) -> None:
        self.known: dict[str, _Known] = {}
        self.revision = 0
        # Only for what is told of a change, so it is not saved: path to hash and outline, the oldest first.
        self.outlines: dict[str, tuple[str, Outline]] = {}


class Ledger:
    """The observations of one agent, and in a view made by `for_call` also those that this call added."""

    def __init__(self, state: _State | None = None) -> None:
        self._state = state or _State()
        self._added: dict[str, _Known] = {}

    @classmethod
    def restore(cls, saved: LedgerDelta) -> Ledger:
        """The ledger that `snapshot` described. Raises: LedgerConflict."""
        ledger = cls()
        ledger.apply(saved)
        return ledger

    def snapshot(self) -> LedgerDelta:
        """All that is known, sorted by path."""
        known = self._state.known
        return LedgerDelta(tuple(each for path in sorted(known) for each in known[path].observations()))

    def for_call(self) -> Ledger:
        """A view on the same knowledge that remembers what is observed through it."""
        return Ledger(self._state)

    def delta(self) -> LedgerDelta:
        """What was observed through this view, in the order in which it was first seen."""
        return LedgerDelta(tuple(each for known in self._added.values() for each in known.observations()))

    def saw_content(self, path: str, sha256: str, outline: Outline | None = None) -> None:
        """The agent has read, or has itself written, content with this hash."""
        self._state.revision += 1
        self._add(Observation(path, sha256, self._state.revision))
        self._remember(path, sha256, outline)

    def saw_paths(self, paths: Iterable[str]) -> None:
        """The agent has seen that these exist. What it knows of their content stays."""
        self._state.revision += 1
        for path in paths:
            if not self.knows(path):  # else it says nothing new, and would only be saved again
                self._add(Observation(path, None, self._state.revision))

    def removed(self, paths: Iterable[str]) -> None:
        """The agent has removed these, so that whatever will be there is unknown to it."""
        self._state.revision += 1
        for path in paths:
            if self.knows(path):
                self._add(Observation(path, None, self._state.revision, gone=True))

    def moved(self, source: str, destination: str) -> None:
        """The agent has moved a path with everything below it: what it knows of that, it knows under the new name."""
        known = [(path, self.sha256_of(path), self.outline_of(path)) for path in self.at_or_below(source)]
        self.removed([*self.at_or_below(source), *self.at_or_below(destination)])
        for path, sha256, outline in known:
            renamed = destination + path[len(source) :]
            if sha256 is None:
                self.saw_paths([renamed])
            else:
                self.saw_content(renamed, sha256, outline)

    def at_or_below(self, path: str) -> list[str]:
        """The known paths that are `path` or lie in it, sorted."""
        inside = path.rstrip("/") + "/"
        known = (each for each in self._state.known if each == path or each.startswith(inside))
        return sorted(each for each in known if self.knows(each))

    def knows(self, path: str) -> bool:
        return self._counting(path) is not None

    def sha256_of(self, path: str) -> str | None:
        """Hash of the content that the agent knows, or None if it never read or wrote this path."""
        known = self._counting(path)
        return known.sha256 if known is not None else None

    def outline_of(self, path: str) -> Outline | None:
        """That of the content that the agent knows, if it is still remembered."""
        sha256, outline = self._state.outlines.get(path, (None, None))
        return outline if sha256 is not None and sha256 == self.sha256_of(path) else None

    def apply(self, delta: LedgerDelta) -> None:
        """Merge saved observations: order and repetition do not matter, the newest revision of a path wins.

        Raises: LedgerConflict, and then nothing was applied.
        """
        merged: dict[str, _Known] = {}
        for observation in delta.observations:
            path = observation.path
            merged[path] = (merged.get(path) or self._state.known.get(path, _Known())).plus(observation)
        self._state.known |= merged
        newest = max((observation.revision for observation in delta.observations), default=0)
        self._state.revision = max(self._state.revision, newest)

    def _remember(self, path: str, sha256: str, outline: Outline | None) -> None:
        outlines = self._state.outlines
        outlines.pop(path, None)
        if outline is None:
            return
        outlines[path] = sha256, outline
        left = MAX_OUTLINED_LINES - sum(len(kept) for _, kept in outlines.values())
        while left < 0:
            left += len(outlines.pop(next(iter(outlines)))[1])

    def _add(self, observation: Observation) -> None:
        for views in (self._state.known, self._added):
            views[observation.path] = views.get(observation.path, _Known()).plus(observation)

    def _counting(self, path: str) -> Observation | None:
        known = self._state.known.get(path)
        return known.counting if known is not None else None


def _newer(known: Observation | None, other: Observation) -> Observation:
    if known is None or known.revision < other.revision:
        return other
    if known.revision == other.revision and known.sha256 != other.sha256:
        raise LedgerConflict(known.path, known.revision)
    return known
