"""What one agent knows of the files around it: the proof that a file was read before it is changed.

A path is known by the hash of its content when the agent read or wrote it, or by its mere existence when it was
listed. Each observation has a revision that grows with every new one of the agent, so that observations of parallel
calls can be put together in any order and give the same ledger.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class LedgerConflict(Exception):
    """Two observations claim one revision of one path with different content: they are not of one agent's history."""

    def __init__(self, path: str, revision: int) -> None:
        super().__init__(f"{path}: two different contents at revision {revision}")
        self.path, self.revision = path, revision


class Observation(msgspec.Struct, frozen=True, array_like=True):
    """One known path: symlink-resolved and absolute. `sha256` is None where only the existence is known."""

    path: str
    sha256: str | None
    revision: int


class LedgerDelta(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Observations to be saved and applied again. It is also the form of a whole ledger."""

    observations: tuple[Observation, ...] = ()


class _State:
    """What all views of one ledger share."""

    def __init__(self) -> None:
        self.known: dict[str, Observation] = {}
        self.revision = 0


class Ledger:
    """The observations of one agent, and in a view made by `for_call` also those that this call added."""

    def __init__(self, state: _State | None = None) -> None:
        self._state = state or _State()
        self._added: dict[str, Observation] = {}

    @classmethod
    def restore(cls, saved: LedgerDelta) -> Ledger:
        """The ledger that `snapshot` described. Raises: LedgerConflict."""
        ledger = cls()
        ledger.apply(saved)
        return ledger

    def snapshot(self) -> LedgerDelta:
        """All that is known, sorted by path."""
        return LedgerDelta(tuple(self._state.known[path] for path in sorted(self._state.known)))

    def for_call(self) -> Ledger:
        """A view on the same knowledge that remembers what is observed through it."""
        return Ledger(self._state)

    def delta(self) -> LedgerDelta:
        """What was observed through this view, in the order in which it was first seen."""
        return LedgerDelta(tuple(self._added.values()))

    def saw_content(self, path: str, sha256: str) -> None:
        """The agent has read, or has itself written, content with this hash."""
        self._state.revision += 1
        self._add(Observation(path, sha256, self._state.revision))

    def saw_paths(self, paths: Iterable[str]) -> None:
        """The agent has seen that these exist. What it knows of their content stays."""
        self._state.revision += 1
        for path in paths:
            if path not in self._state.known:  # else it says nothing new, and would only be saved again
                self._add(Observation(path, None, self._state.revision))

    def knows(self, path: str) -> bool:
        return path in self._state.known

    def sha256_of(self, path: str) -> str | None:
        """Hash of the content that the agent knows, or None if it never read or wrote this path."""
        known = self._state.known.get(path)
        return known.sha256 if known is not None else None

    def apply(self, delta: LedgerDelta) -> None:
        """Merge saved observations: order and repetition do not matter, the newest revision of a path wins.

        Raises: LedgerConflict, and then nothing was applied.
        """
        merged: dict[str, Observation] = {}
        for observation in delta.observations:
            path = observation.path
            merged[path] = _newer(merged.get(path) or self._state.known.get(path), observation)
        self._state.known |= merged
        newest = max((observation.revision for observation in delta.observations), default=0)
        self._state.revision = max(self._state.revision, newest)

    def _add(self, observation: Observation) -> None:
        self._state.known[observation.path] = _newer(self._state.known.get(observation.path), observation)
        self._added[observation.path] = _newer(self._added.get(observation.path), observation)


def _newer(known: Observation | None, other: Observation) -> Observation:
    """The one to keep. A hash is never replaced by mere existence, however much newer that is."""
    if known is None:
        return other
    if known.sha256 is not None and other.sha256 is not None:
        if known.revision == other.revision and known.sha256 != other.sha256:
            raise LedgerConflict(known.path, known.revision)
        return max(known, other, key=lambda observation: observation.revision)
    if (known.sha256 is None) == (other.sha256 is None):
        return max(known, other, key=lambda observation: observation.revision)
    return known if known.sha256 is not None else other
