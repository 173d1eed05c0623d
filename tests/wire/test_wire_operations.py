from __future__ import annotations

import pytest
from msgspec import Struct

from peen.control.controller import build_router
from peen.errors import Refused
from peen.hub import request as hub
from peen.hub.rest import transcript
from peen.wire import rest
from peen.wire.operations import API, MAX_BODY_BYTES, MAX_CURSOR, OPERATIONS, TAGS, Operation, Whole, failures_of


def test_every_route_is_described_and_every_description_is_routed() -> None:
    routed = {(method, path): (route.session, route.public) for method, path, route in build_router().routes()}
    described = {(row.method, row.path): (row.session, row.public) for row in OPERATIONS}

    assert described == routed


def test_a_description_leads_to_the_handler_of_its_own_path() -> None:
    router = build_router()

    for row in OPERATIONS:
        path = row.path.replace("{", "").replace("}", "")
        route, parameters = router.match(row.method, path)
        assert "/" + "/".join(route.template) == row.path
        assert sorted(parameters) == sorted(row.path_parameters)


def test_names_are_unique_and_every_tag_is_explained() -> None:
    ids = [row.id for row in OPERATIONS]

    assert len(set(ids)) == len(ids)
    assert {row.tag for row in OPERATIONS} == TAGS.keys()


def test_everything_but_the_probes_lies_below_the_mount_and_asks_for_the_token() -> None:
    outside = {row.path for row in OPERATIONS if not row.path.startswith(f"{API}/")}

    assert outside == {"/healthz", "/ready"} == {row.path for row in OPERATIONS if row.public}


def test_bodies_are_closed_and_belong_to_calls_that_change_something() -> None:
    for row in OPERATIONS:
        if row.body is not None:
            assert row.method != "GET"
            assert issubclass(row.body, rest.Body)


@pytest.mark.parametrize("row", OPERATIONS, ids=lambda row: row.id)
def test_a_list_by_offset_takes_limit_and_offset_and_nothing_else_does(row: Operation) -> None:
    names = [parameter.name for parameter in row.query]

    assert issubclass(row.answer, rest.Paged) == ({"limit", "offset"} <= set(names))
    assert len(set(names)) == len(names)


def test_the_shared_limits_are_those_of_the_hub() -> None:
    by_name = {parameter.name: parameter for row in OPERATIONS if row.id == "listSessions" for parameter in row.query}
    limit = by_name["limit"]
    feed = {parameter.name: parameter for row in OPERATIONS if row.id == "readFeed" for parameter in row.query}["limit"]

    assert isinstance(limit, Whole)
    assert (limit.default, limit.minimum, limit.maximum) == (hub.DEFAULT_LIMIT, 1, hub.MAX_LIMIT)
    assert isinstance(feed, Whole)
    assert (feed.default, feed.maximum) == (transcript.DEFAULT_FEED_LIMIT, transcript.MAX_FEED_LIMIT)
    assert (MAX_BODY_BYTES, MAX_CURSOR) == (hub.MAX_BODY_BYTES, 2**63 - 1)


def test_refusals_that_only_the_hub_knows_are_described_with_its_statuses() -> None:
    kinds: list[type[Refused]] = [hub.BodyTooLarge, hub.UnsupportedMediaType, hub.BodyTooSlow, hub.HeadTooLarge]
    described = {(failure.status, failure.code) for row in OPERATIONS for failure in failures_of(row)}

    assert {(kind.status, kind.code) for kind in kinds} <= described


def test_what_an_operation_shares_with_others_follows_from_its_row() -> None:
    class Nothing(Struct):
        pass

    read = Operation("GET", "/x", "x", "probes", "X.", Nothing, public=True)
    change = Operation("POST", "/y", "y", "probes", "Y.", Nothing, session=True)

    assert {failure.status for failure in failures_of(read)} == {400, 403, 408, 413, 431, 500}
    statuses = {failure.status for failure in failures_of(change)}
    assert statuses == {400, 401, 403, 404, 406, 408, 413, 415, 431, 500, 507}
    assert failures_of(change) == sorted(failures_of(change), key=lambda failure: (failure.status, failure.code))
