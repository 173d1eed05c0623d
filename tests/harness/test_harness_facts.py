from __future__ import annotations

import os
import re
from datetime import datetime

import pytest

from peen.entropy import SeededEntropy
from peen.harness.facts import runtime_facts


def test_the_time_is_that_of_the_given_clock_with_its_offset() -> None:
    facts = runtime_facts(SeededEntropy(1, start_ms=1_700_000_000_999), peen_version="9.9", zone="Europe/Berlin")

    assert facts.local_time == "2023-11-14T23:00:00+01:00"
    assert facts.time_zone == "Europe/Berlin"


def test_turns_of_one_hour_have_the_same_facts_also_where_the_offset_is_no_whole_hour() -> None:
    begin = 1_699_996_500_000  # 03:00 at that place
    hours = [
        runtime_facts(SeededEntropy(1, start_ms=begin + ms), peen_version="9.9", zone="Asia/Kathmandu")
        for ms in (-1, 0, 1_799_999, 3_599_999, 3_600_000)
    ]

    assert [facts.local_time[11:] for facts in hours] == [
        "02:00:00+05:45", "03:00:00+05:45", "03:00:00+05:45", "03:00:00+05:45", "04:00:00+05:45",
    ]  # fmt: skip
    assert hours[1] == hours[2] == hours[3]


def test_the_machine_is_described() -> None:
    facts = runtime_facts(SeededEntropy(1), peen_version="9.9", zone="UTC")

    assert facts.operating_system.startswith(os.uname().sysname)
    assert facts.architecture == os.uname().machine
    assert 1 <= facts.cpu_count <= (os.cpu_count() or 1)
    assert re.fullmatch(r"Peen 9\.9, Python 3\.\d+\.\d+\S*", facts.runtime_version)


@pytest.mark.parametrize("zone", [None, "No/Such_Zone", "../etc/passwd"])
def test_without_a_known_zone_the_time_still_has_an_offset(zone: str | None) -> None:
    facts = runtime_facts(SeededEntropy(1), peen_version="9.9", zone=zone)

    moment = datetime.fromisoformat(facts.local_time)
    assert moment.utcoffset() is not None
    assert 0 <= 1_700_000_000 - moment.timestamp() < 3600
    assert facts.time_zone
