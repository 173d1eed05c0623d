from __future__ import annotations

from pathlib import Path

import pytest

from peen.errors import ValidationFailed
from peen.model.script import Call, ModelScript, RawResponse, Round, load_script, parse_script
from peen.wire.records import Usage

ONE_TURN = "turns: [{rounds: [{text: hi}]}]"


def only_model(text: str) -> ModelScript:
    (model,) = parse_script(text, source="s.yaml").models.values()
    return model


def test_the_short_form_is_one_model_called_script() -> None:
    script = parse_script(ONE_TURN, source="s.yaml")

    assert list(script.models) == ["script"]
    assert script.models["script"].turns[0].rounds == [Round(text="hi")]


def test_a_round_may_say_everything_about_itself() -> None:
    model = only_model("""
        models:
          m:
            contextWindow: 1000
            repeatLastTurn: true
            turns:
              - rounds:
                  - text: a
                    thinking: b
                    calls:
                      - {name: readFile, arguments: {path: x}, id: c1}
                      - {name: readFile, arguments: "{not json"}
                    usage: {prompt: 3, cacheRead: 1}
                    delayMs: 5
                    pieceDelayMs: 6
                    chunk: 7
                    finishReason: end_turn
                    repeat: 2
                    fault: {kind: status, status: 429, times: 2, message: later, retryAfter: 1.5}
        """)
    found = model.turns[0].rounds[0]

    assert (model.context_window, model.repeat_last_turn) == (1000, True)
    assert found.calls == [
        Call(name="readFile", arguments={"path": "x"}, id="c1"),
        Call(name="readFile", arguments="{not json"),
    ]
    assert found.usage == Usage(prompt=3, cache_read=1)
    assert (found.delay_ms, found.piece_delay_ms, found.chunk, found.repeat) == (5, 6, 7, 2)
    assert found.finish_reason == "end_turn"
    assert found.fault is not None
    assert (found.fault.status, found.fault.times, found.fault.retry_after) == (429, 2, 1.5)


def test_a_raw_round_is_bytes() -> None:
    (found,) = (
        only_model("""
        turns:
          - rounds:
              - response: {status: 503, headers: {Retry-After: "2"}}
                raw:
                  - event: {a: [1, null]}
                  - event: "[DONE]"
                    name: message
                  - event: null
                  - text: "data:é\\r"
                  - hex: "ff 00"
                  - pauseMs: 5
                  - stop: reset
        """)
        .turns[0]
        .rounds
    )

    assert found.response == RawResponse(status=503, headers={"Retry-After": "2"})
    assert found.raw is not None
    assert [piece.encoded() for piece in found.raw] == [
        b'data: {"a":[1,null]}\n\n', b"event: message\ndata: [DONE]\n\n", b"data: null\n\n", "data:é\r".encode(),
        b"\xff\x00", b"", b"",
    ]  # fmt: skip
    assert (found.raw[5].pause_ms, found.raw[6].stop) == (5, "reset")


def test_a_repeated_round_is_played_as_often_as_it_says() -> None:
    turn = only_model("turns: [{rounds: [{text: a, repeat: 2}, {text: b}]}]").turns[0]

    played = [turn.round_at(index) for index in range(4)]

    assert [found.text if found else None for found in played] == ["a", "a", "b", None]
    assert turn.length == 3


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("- a", "s.yaml: must be a mapping with `models` or `turns` at its top"),
        ("turns: [", "s.yaml: is not valid YAML"),
        (f"{ONE_TURN}\n---\n{ONE_TURN}", "s.yaml: is not valid YAML"),
        ("models: {}", "s.yaml: models: must map at least one model id to its turns"),
        ("models: {1: {turns: []}}", "s.yaml: models: 1 is no model id; write it as non-empty text in quotes"),
        (f"models: {{}}\n{ONE_TURN}", "s.yaml: `turns` cannot stand beside `models`"),
        ("turns: []", "s.yaml: turns: Expected `array` of length >= 1"),
        (
            "turn: []",
            "s.yaml: Object contains unknown field `turn` (fields here: turns, contextWindow, repeatLastTurn, summary, "
            "refuseOver)",
        ),
        (
            "models: {a: {turns: [{rounds: [{txt: hi}]}]}}",
            "s.yaml: models.a.turns[0].rounds[0]: Object contains unknown field `txt` (fields here: text, thinking,",
        ),
        (
            "turns: [{rounds: [{calls: [{arguments: {}}]}]}]",
            "turns[0].rounds[0].calls[0]: Object missing required field `name` (fields here: name, arguments, id)",
        ),
        (
            "turns: [{rounds: [{usage: {tokens: 1}}]}]",
            "turns[0].rounds[0].usage: Object contains unknown field `tokens` (fields here: prompt, completion,",
        ),
        (
            "turns: [{rounds: [{fault: {kind: cut, after: 1}}]}]",
            "rounds[0].fault: Object contains unknown field `after` (fields here: kind, status, afterPieces, times,",
        ),
        ("turns: [{round: []}]", "turns[0]: Object contains unknown field `round` (fields here: rounds)"),
        ("turns: [{rounds: [{fault: {kind: slow}}]}]", "turns[0].rounds[0].fault.kind: Invalid enum value 'slow'"),
        ("turns: [{rounds: [{fault: {kind: cut, status: 500}}]}]", "`status` belongs to a fault of kind `status`"),
        (
            "turns: [{rounds: [{raw: [{text: a, hex: ff}]}]}]",
            "exactly one of `event`, `text`, `hex`, `pauseMs`, `stop`",
        ),
        ("turns: [{rounds: [{raw: [{}]}]}]", "exactly one of `event`, `text`, `hex`, `pauseMs`, `stop`"),
        ("turns: [{rounds: [{raw: [{hex: f}]}]}]", "rounds[0].raw[0]: non-hexadecimal number"),
        ("turns: [{rounds: [{raw: [{text: a, name: x}]}]}]", "`name` belongs to an `event`"),
        ("turns: [{rounds: [{raw: [{stop: cut}, {text: a}]}]}]", "nothing comes behind a `stop` piece"),
        ("turns: [{rounds: [{raw: [], text: a}]}]", "a `raw` round is its bytes alone"),
        ("turns: [{rounds: [{raw: [], fault: {kind: cut}}]}]", "in a `raw` round a `stop` piece does"),
        ("turns: [{rounds: [{text: a, response: {status: 201}}]}]", "`response` belongs to a `raw` round"),
        ("turns: [{rounds: [{raw: [{txt: a}]}]}]", "unknown field `txt` (fields here: event, text, hex,"),
        ("turns: [{rounds: [{raw: [], response: {code: 1}}]}]", "unknown field `code` (fields here: status, headers)"),
        ("turns: [{rounds: [{delayMs: soon}]}]", "turns[0].rounds[0].delayMs: Expected `int`, got `str`"),
        ("turns: [{rounds: [{chunk: 0}]}]", "turns[0].rounds[0].chunk: Expected `int` >= 1"),
    ],
)
def test_a_wrong_script_names_the_file_the_place_and_the_remedy(text: str, problem: str) -> None:
    with pytest.raises(ValidationFailed) as caught:
        parse_script(text, source="s.yaml")

    assert problem in caught.value.message


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValidationFailed, match=r"absent\.yaml: cannot be read"):
        load_script(tmp_path / "absent.yaml")
    (tmp_path / "latin.yaml").write_bytes("turns: [{rounds: [{text: é}]}]".encode("latin-1"))
    with pytest.raises(ValidationFailed, match=r"latin\.yaml: cannot be read as UTF-8 text"):
        load_script(tmp_path / "latin.yaml")
