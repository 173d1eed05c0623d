"""Loggers, and where their lines go."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from types import FrameType
from typing import Any, Final, Literal, Self, TextIO

import msgspec
import structlog

from peen.entropy import Entropy, SystemEntropy
from peen.log.audit import AuditFile, open_audit_directory, rfc3339_ms
from peen.log.redact import clean_field, clean_text, exception_text
from peen.log.text import text_line

LEVELS: Final = {"debug": 10, "info": 20, "warn": 30, "error": 40}
_OFF: Final = 100
_PACKAGES: Final = (__name__.rpartition(".")[0], "structlog", "logging")
# What formatting and writing can raise: odd values, closed streams, full disks. A log line is never worth a crash.
_FAILURES: Final = (OSError, ValueError, TypeError, AttributeError, ArithmeticError, RuntimeError, LookupError)


class Logger(structlog.BoundLoggerBase):
    """Writes events with fields: `log.info("worker ready", generation_id=…)`. Made by `get_logger`.

    `event` may hold %-placeholders for `args`. Nothing here raises. Every call is cheap while its level is off.
    """

    def debug(self, event: str, /, *args: object, **fields: Any) -> None:
        if _active.threshold <= 10:
            self._emit("debug", event, args, fields)

    def info(self, event: str, /, *args: object, **fields: Any) -> None:
        if _active.threshold <= 20:
            self._emit("info", event, args, fields)

    def warning(self, event: str, /, *args: object, **fields: Any) -> None:
        if _active.threshold <= 30:
            self._emit("warn", event, args, fields)

    def error(self, event: str, /, *args: object, **fields: Any) -> None:
        self._emit("error", event, args, fields)

    def exception(self, event: str, /, *args: object, **fields: Any) -> None:
        """`error` with the traceback of the exception that is being handled."""
        self._emit("error", event, args, {"exc_info": True, **fields})

    warn = warning
    critical = error

    def _emit(self, level: str, event: str, args: tuple[object, ...], fields: dict[str, Any]) -> None:
        try:
            if args:
                event = _formatted(event, args)
            (record,), _none = self._process_event(level, event, fields)
            _active.write(level, record)
        except structlog.DropEvent:
            return
        except _FAILURES:
            _active.dropped += 1


class Logging:
    """Where lines go: a stream at its level, and the audit files with everything.

    Owns:  the audit files; borrows the stream. Safe to use from threads.
    Ends:  `close`, which flushes and gives the previous configuration back.
    """

    def __init__(
        self,
        *,
        stream: TextIO | None,
        stream_level: int,
        form: str,
        add_source: bool,
        audit: AuditFile | None,
        entropy: Entropy,
    ) -> None:
        self.dropped = 0
        self.threshold = stream_level if audit is None else LEVELS["debug"]
        self.add_source, self.entropy = add_source, entropy
        self._stream, self._stream_level, self._form = stream, stream_level, form
        self._audit = audit
        self._lock = threading.RLock()  # a finalizer may log while its own thread is writing a line
        self._restore: tuple[Logging, dict[str, Any], logging.Handler] | None = None

    @property
    def lines_dropped(self) -> int:
        """Lines that could not be written, since the start."""
        return self.dropped + (self._audit.dropped if self._audit is not None else 0)

    def write(self, level: str, record: Mapping[str, object]) -> None:
        """One finished line: plain JSON values, time and level first."""
        number = LEVELS[level]
        to_stream = number >= self._stream_level
        with self._lock:
            encoded = b""
            if self._audit is not None or self._form == "json":
                encoded = msgspec.json.encode(record)
            if self._audit is not None:
                # Debug lines may wait; what an operator would look for after a crash is written at once.
                self._audit.write(encoded, self.entropy.now_ms(), urgent=number > LEVELS["debug"])
            if to_stream:
                self._to_stream(encoded.decode() if self._form == "json" else text_line(record))

    def flush(self) -> None:
        """Writes the debug lines that wait."""
        with self._lock:
            if self._audit is not None:
                self._audit.flush()

    def close(self) -> None:
        """Flushes, closes the audit file, and gives the previous configuration back. Twice is harmless."""
        global _active
        if self._restore is None:
            return
        previous, structlog_config, handler = self._restore
        self._restore = None
        logging.getLogger().removeHandler(handler)
        structlog.configure(**structlog_config)
        _active = previous
        with self._lock:
            if self._audit is not None:
                self._audit.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _to_stream(self, line: str) -> None:
        stream = self._stream if self._stream is not None else sys.stderr
        try:
            stream.write(line + "\n")
            stream.flush()
        except UnicodeEncodeError:
            stream.write(line.encode("ascii", "backslashreplace").decode() + "\n")
        except BrokenPipeError:
            self._stream_level = _OFF  # nobody reads any more; the audit file goes on
            self.dropped += 1


def configure_logging(
    level: str,
    format: Literal["text", "json"],
    add_source: bool,
    directory: Path | None,
    retention_days: int,
    entropy: Entropy,
    *,
    stream: TextIO | None = None,
) -> Logging:
    """Starts logging; close what is returned.

    `level` is one of `LEVELS` and rules `stream` (standard output unless given). With a `directory` every line from
    debug on also goes to daily audit files there, kept for `retention_days`. Warnings and errors that libraries send
    to the standard `logging` module come along. Raises: ConfigurationInvalid if the directory cannot be used.
    """
    global _active
    audit = None
    if directory is not None:
        open_audit_directory(directory)
        audit = AuditFile(directory, retention_days)
    started = Logging(
        stream=stream if stream is not None else sys.stdout,
        stream_level=LEVELS[level],
        form=format,
        add_source=add_source,
        audit=audit,
        entropy=entropy,
    )
    handler = _Relay(logging.WARNING)
    started._restore = (_active, structlog.get_config(), handler)
    structlog.configure(
        processors=_PROCESSORS,
        wrapper_class=Logger,
        context_class=dict,
        logger_factory=_named,
        cache_logger_on_first_use=False,
    )
    logging.getLogger().addHandler(handler)
    _active = started
    return started


def get_logger(name: str) -> Logger:
    """A logger for one module; it follows every later `configure_logging`. Before the first, warnings go to stderr."""
    return Logger(name, _PROCESSORS, {})


class _Relay(logging.Handler):
    """Brings the records of libraries along."""

    def emit(self, record: logging.LogRecord) -> None:
        logger = get_logger(record.name)
        write = logger.error if record.levelno >= logging.ERROR else logger.warning
        try:
            message = record.getMessage()
        except _FAILURES:
            message = str(record.msg)
        write(message, exc_info=record.exc_info)


def _record(
    logger: Any, level: str, event: MutableMapping[str, Any]
) -> tuple[tuple[dict[str, object]], dict[str, Any]]:
    """The one processor: what a caller gave becomes what may be written."""
    record: dict[str, object] = {
        "timestamp": rfc3339_ms(_active.entropy.now_ms()),
        "level": level,
        "logger": logger,
        "event": clean_text(str(event.pop("event", ""))),
    }
    error = _error_of(event.pop("exc_info", None))
    for key, value in event.items():
        # A field never hides one of the four above.
        record[f"{key}_" if key in record else key] = clean_field(key, value)
    if _active.add_source:
        record["source"] = _source()
    if error is not None:
        record["exception"] = exception_text(error)
    return (record,), {}


def _error_of(exc_info: object) -> BaseException | None:
    if isinstance(exc_info, BaseException):
        return exc_info
    if isinstance(exc_info, tuple):
        return exc_info[1] if isinstance(exc_info[1], BaseException) else None
    return sys.exc_info()[1] if exc_info else None


def _source() -> str:
    """`module:line` of the nearest frame outside logging."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if not module.startswith(_PACKAGES):
            return f"{module}:{frame.f_lineno}"
        frame = frame.f_back
    return "unknown"


def _formatted(event: str, args: tuple[object, ...]) -> str:
    try:
        return event % args
    except (TypeError, ValueError):
        return event  # the placeholders do not fit: the text alone still says what happened


def _named(*args: Any) -> str:
    return str(args[0]) if args else "peen"


_PROCESSORS: Final[list[Any]] = [_record]
_active = Logging(
    stream=None, stream_level=LEVELS["warn"], form="text", add_source=False, audit=None, entropy=SystemEntropy()
)
