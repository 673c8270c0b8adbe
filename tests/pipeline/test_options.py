"""The options of the source and of the sink: what they take, and what is said of what they do not."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from hedgerow.errors import ConfigError
from hedgerow.pipeline.options import ALL_COLUMNS, read_options, write_options


def test_a_directory_is_all_that_is_needed() -> None:
    options = read_options({"journals": "/data/journal/"})
    assert options.journals == ("/data/journal",)
    assert options.topics == ()
    assert options.columns == ALL_COLUMNS
    assert options.starting_position == "earliest"
    assert options.rows_per_batch == 1_000_000
    assert options.reader is None


def test_each_option_is_read_whatever_its_letters_are() -> None:
    options = read_options(
        {
            "JOURNALS": '["/data/a", "/data/*/journal", "/data/a"]',
            "topics": '["farm/#", "home/+"]',
            "columns": "topic, received_at",
            "startingposition": '{"/data/a/": 5, "0123": 7}',
            "rowsPerBatch": "10",
            "rowsperpartition": "3",
            "reader": "bronze",
            "gaps": "/data/gaps",
            "missingJournals": "ignore",
            "checkpointLocation": "/data/checkpoint",
        }
    )
    assert options.journals == ("/data/a", "/data/*/journal")
    assert options.topics == ("farm/#", "home/+")
    assert options.columns == ("topic", "received_at")
    assert options.starting_position == {"/data/a": 5, "0123": 7}
    assert (options.rows_per_batch, options.rows_per_partition) == (10, 3)
    assert (options.reader, options.gaps) == ("bronze", "/data/gaps")
    assert options.ignores_missing


def test_paths_do_not_depend_on_where_a_process_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_options({"path": "journal"}).journals == (str(tmp_path / "journal"),)


def test_columns_may_be_a_json_array() -> None:
    assert read_options({"journals": "/j", "columns": '["payload"]'}).columns == ("payload",)


@pytest.mark.parametrize(
    ("text", "at"),
    [("2026-11-15T06:30:00Z", 1794724200.0), ("2026-11-15T06:30:00", 1794724200.0), ("1970-01-01", 0.0)],
)
def test_a_time_without_a_zone_is_utc(text: str, at: float) -> None:
    assert read_options({"journals": "/j", "startingTime": text}).starting_time == at


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "Set the option journals"),
        ({"journals": "[]"}, "Set the option journals"),
        ({"journals": '["/a", 7]'}, "not empty"),
        ({"journals": '["/a"'}, "neither one nor a JSON array"),
        ({"journals": "/a", "path": "/b"}, "use one of them"),
        ({"journal": "/a"}, "did you mean journals"),
        ({"journals": "/a", "rowsPerBach": "1"}, "did you mean rowsPerBatch"),
        ({"journals": "/a", "kafka.bootstrap.servers": "x"}, "there are journals, topics"),
        ({"journals": "/a", "topics": "a/#/b"}, "option topics"),
        ({"journals": "/a", "topics": "$share/g/a"}, "shared subscription"),
        ({"journals": "/a", "columns": "topic,payloads"}, "did you mean payload"),
        ({"journals": "/a", "columns": "topic,topic"}, "each once"),
        ({"journals": "/a", "columns": ""}, "at least one"),
        ({"journals": "/a", "startingPosition": "newest"}, "it takes earliest, latest or JSON"),
        ({"journals": "/a", "startingPosition": "[1]"}, "it takes earliest, latest or JSON"),
        ({"journals": "/a", "startingPosition": '{"/a": -1}'}, "not a position"),
        ({"journals": "/a", "startingPosition": '{"/a": true}'}, "not a position"),
        ({"journals": "/a", "startingTime": "yesterday"}, "ISO 8601"),
        ({"journals": "/a", "startingTime": "1970-01-01", "startingPosition": "latest"}, "one of them"),
        ({"journals": "/a", "rowsPerBatch": "0"}, "1 or more"),
        ({"journals": "/a", "rowsPerPartition": "many"}, "1 or more"),
        ({"journals": "/a", "reader": "../x"}, "option reader"),
        ({"journals": "/a", "missingJournals": "never"}, "fail or ignore"),
    ],
)
def test_what_cannot_be_used_is_refused_with_what_would_do(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_options(options)


def test_the_sink_is_told_a_broker_and_a_name() -> None:
    options = write_options({"broker": "mqtt://anna:secret@localhost", "query": "alarms"})
    assert (options.broker, options.query) == ("mqtt://anna:secret@localhost", "alarms")
    assert not options.skips_invalid
    assert options.timeout_s == 60.0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"query": "q"}, "needs the option broker"),
        ({"broker": "mqtt://localhost"}, "needs the option query"),
        ({"broker": "gopher://localhost", "query": "q"}, "gopher"),
        ({"broker": "mqtt://localhost", "query": "a/b"}, "option query"),
        ({"broker": "mqtt://localhost", "query": "q", "topicPrefix": "x"}, "unknown option"),
        ({"broker": "mqtt://localhost", "query": "q", "invalid": "drop"}, "fail or skip"),
        ({"broker": "mqtt://localhost", "query": "q", "timeout": "-1"}, "seconds"),
        ({"broker": "mqtt://localhost", "query": "q", "timeout": "soon"}, "seconds"),
        ({"broker": "mqtt://localhost", "query": "q", "insecure": "yes"}, "false or true"),
    ],
)
def test_the_sink_refuses_what_it_cannot_use(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        write_options(options)


def test_a_password_is_not_shown() -> None:
    options = write_options({"broker": "mqtt://localhost", "query": "q", "password": "hunter2"})
    assert "hunter2" not in repr(options)
