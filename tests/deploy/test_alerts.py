"""The alerts as Prometheus evaluates them: each on figures that call for it, and on some that do not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

from tests.deploy.prometheus import RULES, promtool, rules

TARGET = {"instance": "barn:8780", "job": "hedgerow"}
DROPPED = 'hedgerow_federation_messages_dropped_total{direction="out",neighbour="house",reason="%s"}'

Series = dict[str, str]
"""The values of each minute as promtool has them: `1x19 0x9` is 1 until minute 19, and 0 from then on."""


class Case(NamedTuple):
    """What it looks like after 20 minutes."""

    fires: Series
    quiet: Series
    summary: str


CASES = {
    "HedgerowDown": Case({"up": "1x18 0x9"}, {"up": "1x19 0x9"}, "barn:8780 is not reached."),
    "HedgerowProblem": Case(
        {"hedgerow_healthy": "1x18 0x9"},
        {"hedgerow_healthy": "1x19 0x9"},
        "barn:8780 cannot do all of its work.",
    ),
    "HedgerowRestarts": Case(
        {"hedgerow_start_time_seconds": "100x15 200 300 400x9"},
        {"hedgerow_start_time_seconds": "100x15 200 300x9"},
        "barn:8780 started 3 times in 15 minutes.",
    ),
    "HedgerowDropsMessages": Case(
        {"hedgerow_messages_dropped_total": "0+90x30"},
        {"hedgerow_messages_dropped_total": "0x15 90x9"},  # all at once, and then no more
        "barn:8780 gives up 1.5 deliveries a second.",
    ),
    "HedgerowBridgeDown": Case(
        {'hedgerow_bridge_up{bridge="north"}': "1x14 0x9"},
        {'hedgerow_bridge_up{bridge="north"}': "1x15 0x9"},
        "Bridge north of barn:8780 is down.",
    ),
    "HedgerowAlone": Case(
        {"hedgerow_federation_neighbours": "1x14 0x9"},
        {"hedgerow_federation_neighbours": "1x15 0x9"},
        "barn:8780 has no neighbours.",
    ),
    "HedgerowNeighbourWaits": Case(
        {'hedgerow_federation_queued_messages{neighbour="house"}': "10000x9 10001x20"},
        {'hedgerow_federation_queued_messages{neighbour="house"}': "10000x10 10001x20"},
        "10001 messages wait at barn:8780 for house.",
    ),
    "HedgerowFederationLosesMessages": Case(
        {DROPPED % "overflowed": "0x19 1"},
        # QoS 0 for one that is away, and what was lost long ago.
        {DROPPED % "away": "0x19 1", DROPPED % "refused": "1x30"},
        "barn:8780 does not pass messages on to house: overflowed.",
    ),
    "HedgerowJournalMissesMessages": Case(
        {"hedgerow_journal_missed_total": "0x19 1"},
        {"hedgerow_journal_missed_total": "7x30"},
        "barn:8780 passed on messages that it did not record.",
    ),
    "HedgerowCommitsFail": Case(
        {"hedgerow_commit_failures_total": "0x19 1"},
        {"hedgerow_commit_failures_total": "7x30"},
        "barn:8780 cannot write to its store.",
    ),
    "HedgerowCommitsAreSlow": Case(
        {"hedgerow_commit_seconds_total": "0+60x30", "hedgerow_commits_total": "0+80x30"},
        {"hedgerow_commit_seconds_total": "0+40x30", "hedgerow_commits_total": "0+80x30"},
        "A commit of barn:8780 takes 750ms.",
    ),
    "HedgerowIsLate": Case(
        {"hedgerow_loop_lateness_maximum_seconds": "0x17 1.5x9"},
        {"hedgerow_loop_lateness_maximum_seconds": "0x18 1.5x9"},
        "barn:8780 answers up to 1.5s late.",
    ),
    "HedgerowNearlyFull": Case(
        {"hedgerow_connections": "91x30", "hedgerow_connections_limit": "100x30"},
        {"hedgerow_connections": "90x30", "hedgerow_connections_limit": "100x30"},
        "barn:8780 has 91% of the connections that it may.",
    ),
    "HedgerowBacklogNearlyFull": Case(
        {"hedgerow_backlog_stored_bytes": "81x30", "hedgerow_backlog_limit_bytes": "100x30"},
        {"hedgerow_backlog_stored_bytes": "80x30", "hedgerow_backlog_limit_bytes": "100x30"},
        "Waiting messages at barn:8780 take 81% of their room.",
    ),
    "HedgerowBacklogFullSoon": Case(
        {"hedgerow_backlog_full_seconds": "1800x30"},
        {"hedgerow_backlog_full_seconds": "3600x30"},
        "There is room for waiting messages at barn:8780 for 30m 0s.",
    ),
    "HedgerowFewFilesLeft": Case(
        {"process_open_fds": "91x30", "process_max_fds": "100x30"},
        {"process_open_fds": "90x30", "process_max_fds": "100x30"},
        "barn:8780 has 91% of the files open that it may.",
    ),
    "HedgerowRefusesConnections": Case(
        {"hedgerow_connections_refused_total": "0+90x30"},
        {"hedgerow_connections_refused_total": "0+60x30"},
        "barn:8780 refuses 1.5 connections a second.",
    ),
    "HedgerowMulticastLosesMessages": Case(
        {"hedgerow_multicast_lost_total": "0+1x30"},
        {"hedgerow_multicast_lost_total": "9x30"},
        "barn:8780 missed 10 frames that nobody could send again.",
    ),
}


def labels_of(series: str) -> dict[str, str]:
    return TARGET | dict(re.findall(r'(\w+)="(\w+)"', series))


def selector_of(series: str) -> str:
    labels = ",".join(f'{name}="{value}"' for name, value in labels_of(series).items())
    return f"{series.partition('{')[0]}{{{labels}}}"


def test_every_alert_has_its_case() -> None:
    assert list(CASES) == [rule["alert"] for rule in rules()]


def test_alerts_fire_when_they_should_and_not_before(tmp_path: Path) -> None:
    tests = []
    for rule in rules():
        case = CASES[rule["alert"]]
        fired = {
            "exp_labels": labels_of(next(iter(case.fires))) | rule["labels"],
            "exp_annotations": rule["annotations"] | {"summary": case.summary},
        }
        for series, expected in ((case.fires, [fired]), (case.quiet, [])):
            inputs = [{"series": selector_of(name), "values": values} for name, values in series.items()]
            look = {"eval_time": "20m", "alertname": rule["alert"], "exp_alerts": expected}
            tests.append({"interval": "1m", "input_series": inputs, "alert_rule_test": [look]})
    path = tmp_path / "test.yml"
    path.write_text(json.dumps({"rule_files": [str(RULES)], "tests": tests}))
    promtool("test", "rules", str(path))
