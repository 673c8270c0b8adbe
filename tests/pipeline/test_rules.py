"""The table of rules: what it takes, and how it says what is wrong."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest

from hedgerow.errors import ConfigError
from hedgerow.pipeline.rules import MAX_RULES, Field, Time, load_rules, parse_rules
from hedgerow.pipeline.watch import WatchSettings
from hedgerow.pipeline.watch_rules import settings_for

STATION = """
[ignore]
filters = ["farm/notice"]

[[reading]]
name = "station"
filter = "farm/+/station"
format = "json"
sensor = "device.id"
time = { path = "at", unit = "ms" }
max_bytes = 1000
[reading.fields]
temperature = { path = "air.t", unit = "°C", min = -40, max = 60 }
door = { type = "boolean", optional = true }

[[reading]]
filter = "mill/#"
format = "csv"
columns = ["when", "", "flow"]
delimiter = ";"
sensor = [2]
[reading.fields.flow]
"""


def rule(text: str) -> str:
    """The smallest good rule, with these lines."""
    return f'[[reading]]\nfilter = "a/+"\nformat = "number"\n{text}\n'


def test_a_table_is_read() -> None:
    rules = parse_rules(STATION)
    station, mill = rules.readings
    assert rules.ignored == ("farm/notice",)
    assert (station.name, station.sensor, station.max_bytes) == ("station", "device.id", 1000)
    assert station.time == Time("at", "ms")
    assert station.fields == (
        Field("temperature", "air.t", "number", "°C", -40, 60),
        Field("door", "door", "boolean", optional=True),
    )
    assert (mill.name, mill.columns, mill.delimiter, mill.sensor) == (
        "mill/#",
        ("when", "", "flow"),
        ";",
        (2,),
    )
    assert mill.fields == (Field("flow", "flow"),)


def test_what_stands_out_is_said_for_some_sensors() -> None:
    text = """
[[anomaly]]
sensor = "farm/+/mast"
field = "direction"
circular = 400
spike = false
stuck = { readings = 30, time = "2h" }

[[anomaly]]
sensor = "farm/#"
min = -5
rests = [0, 1]
pattern = { factor = 3 }
silence = { time = 90 }
memory = { time = "7d", readings = 50 }
learn = 20
"""
    watches = parse_rules(rule("") + text).watches
    mast = settings_for(watches, "farm/north/mast", "direction", "°")
    assert (mast.circular, mast.minimum, mast.is_spike_told) == (400, -inf, False)
    assert (mast.stuck_readings, mast.stuck_s, mast.stuck_factor) == (30, 7_200, 3)
    rain = settings_for(watches, "farm/north/mast", "rain", "mm")
    assert (rain.minimum, rain.maximum, rain.rests, rain.unusual_factor) == (-5, inf, (0, 1), 3)
    assert (rain.silence_s, rain.memory_s, rain.memory_readings, rain.learn_readings) == (90, 604_800, 50, 20)
    other = settings_for(watches, "mill", "wind", "°")
    assert (other.circular, other.minimum, other.maximum) == (360, 0, 360)
    assert settings_for(watches, "mill", "flow", None) == WatchSettings()


def test_the_farms_table_is_good() -> None:
    assert "field/+/+" in [rule.filter for rule in load_rules().readings]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[reading]", "line 1"),
        ("", "reading is missing"),
        ("[reading]\nfilter = 'a'", r"write \[\[reading\]\]"),
        ("[[readings]]", "readings is no key here; did you mean reading?"),
        ("[ignore]\nfilters = ['a/#/b']", "ignore.filters is no topic filter: '#' is not alone"),
        ("[ignore]\nfilter = ['a']", "ignore.filter is no key here; did you mean filters?"),
        ("[[reading]]\nformat = 'json'", "line 1: reading 1: filter is missing"),
        (rule("mni = 3"), "mni is no key here; did you mean min?"),
        (rule("") + rule("min = 'x'\nname = 'b'"), "line 5: reading 2: min is not a number"),
        (rule("min = nan"), "min is not a number"),
        (rule(f"max = {'9' * 400}"), "max is not a number"),
        ("a = " + "[" * 5_000, "recursion"),
        ('[[reading]]\nfilter = "$share/g/a"\nformat = "number"', "shared subscription"),
        (rule("min = 3\nmax = 2"), "min is greater than max: 3 > 2"),
        (rule("") + rule(""), r"the name 'a/\+' is given twice"),
        (rule("field = 3"), r"field 3 is no level of 'a/\+': they count from 1 to 2"),
        (rule("field = true"), "field is neither a name nor"),
        (rule("sensor = [0]"), "sensor 0 is no level"),
        (rule("sensor = 'id'"), "sensor is a path, and the payload is one value"),
        (rule("time = { path = 'a', unit = 's' }"), "time.path the payload is one value"),
        (rule("type = 'text'"), "type is 'text', not one of number"),
        (rule("fields = { a = {} }"), "fields is not for the format number"),
        (rule("columns = ['a']"), "columns is for the format csv"),
        (rule("max_bytes = 0"), "max_bytes is not a number from 1"),
        (rule("max_bytes = true"), "max_bytes is not a number from 1"),
        ("[[reading]]\nfilter = 'a'\nformat = 'jsn'", "format is 'jsn', .*; did you mean 'json'?"),
        ("[[reading]]\nfilter = 'a'\nformat = 'json'", "fields is missing"),
        ("[[reading]]\nfilter = 'a'\nformat = 'json'\nfields = {}", "fields is empty|fields is missing"),
        ("[[reading]]\nfilter = 'a'\nformat = 'json'\nfields = { a = 1 }", "fields.a is not a table"),
        (
            "[[reading]]\nfilter = 'a'\nformat = 'json'\nfields.a.path = 'x..y'",
            "fields.a.path 'x..y' is no path",
        ),
        (
            "[[reading]]\nfilter = 'a'\nformat = 'json'\nfields.a.typ = 'x'",
            "fields.a.typ is no key here; .* type",
        ),
        (
            "[[reading]]\nfilter = 'a'\nformat = 'json'\nunit = 'C'\nfields.a = {}",
            "unit is given beside fields",
        ),
        ("[[reading]]\nfilter = 'a'\nformat = 'text'\ntype = 'text'\nmin = 1", "min is for numbers"),
        ("[[reading]]\nfilter = 'a'\nformat = 'text'\nfields.'a b' = {}", "'a b' is no name that can stand"),
        ("[[reading]]\nfilter = 'a'\nformat = 'csv'\nfields.a = {}", "columns is missing"),
        (
            "[[reading]]\nfilter = 'a'\nformat = 'csv'\ncolumns = ['flow']\nfields.flo = {}",
            "fields.flo.path columns has no 'flo'; did you mean 'flow'?",
        ),
        (
            "[[reading]]\nfilter = 'a'\nformat = 'csv'\ncolumns = ['x']\ndelimiter = '::'\nfields.x = {}",
            "delimiter '::' is not one ASCII character",
        ),
        (
            "[[reading]]\nfilter = 'a'\nformat = 'json'\nfields.a = {}\ntime = { path = 'a', unit = 'sec' }",
            "time.unit is 'sec', not one of s, ms, us, iso",
        ),
        ("[[reading]]\nfilter = 'a'\nformat = 'text'\neach = 'x'", "each is for the formats json and cbor"),
        (
            "[[reading]]\nfilter = 'a'\nformat = 'cbor'\neach = 'x..y'\nfields.a = {}",
            "each 'x..y' is no path",
        ),
        ("[[reading]]\nfilter = 'a'\nformat = 'cbor'", "fields is missing: what of the cbor"),
        ("[[reading]]\nfilter = 'a'\nformat = 'json'\nfields.a.path = '$.a.b'\nsensor = 'x..'", "is no path"),
        ("[[reading]]\nfilter = 'a'\nformat = 'senml'\nsensor = 'x'", "senml has none: give the levels"),
        ("[[reading]]\nfilter = 'a'\nformat = 'sparkplug'\ntime = {}", "time.* has times of its own"),
        (rule("") + "[anomaly]\nfield = 'a'", r"write \[\[anomaly\]\]"),
        (rule("") + "[[anomaly]]\nsensr = 'a'", "anomaly 1: sensr is no key here; did you mean sensor?"),
        (
            rule("") + "[[anomaly]]\nstuck = { reading = 3 }",
            "stuck.reading is no key here; did you mean readings",
        ),
        (rule("") + "[[anomaly]]\nstuck = { time = '2 weeks' }", "stuck.time '2 weeks' is no time: write 90"),
        (rule("") + "[[anomaly]]\nspike = { readings = 100 }", "spike.readings is 100, not from 1 to 8"),
        (rule("") + "[[anomaly]]\nmemory = false", "memory is not a table"),
        (rule("") + "[[anomaly]]\nrests = 3", "rests is not a list of numbers"),
        (rule("") * (MAX_RULES + 1), f"at most {MAX_RULES}"),
    ],
)
def test_what_is_wrong_is_said(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_rules(text)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none.toml"):
        load_rules(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="binary.toml"):
        load_rules(tmp_path / "binary.toml")
