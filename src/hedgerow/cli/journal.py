"""`hedgerow journal ls|cat|export|verify`: what is in a journal, of a node, a recorder or a subscriber.

A journal may be read while it is written.
"""

from __future__ import annotations

import argparse
import json
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from time import time

from hedgerow.cli.beginnings import add_beginnings
from hedgerow.cli.option_values import topic_filter, whole
from hedgerow.cli.parsing import UsageError
from hedgerow.cli.sub_format import Piece, compile_format, describe, print_payload, print_verbosely
from hedgerow.errors import ConfigError, escape_controls
from hedgerow.journal import JournalReader, check
from hedgerow.journal.columns import need
from hedgerow.journal.io.files import committed_positions, journal_id
from hedgerow.journal.io.listing import (
    EVERYTHING,
    RecordedMessage,
    count_topics,
    end_of,
    list_segments,
    recorded,
)
from hedgerow.journal.io.pages import find_position
from hedgerow.journal.replay.names import Start, read_start
from hedgerow.mqtt.client.events import MessageReceived

USAGE = "%(prog)s ls DIR… | cat DIR | export DIR FILE | verify DIR… [OPTIONS]"
EXAMPLES = """\
examples:
  hedgerow journal ls data/journal
  hedgerow journal ls data/journal --topics --since 1h
  hedgerow journal cat data/journal -t 'farm/#' --last 20 -F '%I %t %p'
  hedgerow journal export data/journal farm.parquet -t 'farm/#' --since 7d
  hedgerow journal verify data/journal

FILE of export ends in .parquet, .csv (both need the extra spark) or .jsonl. Formats are those of
`hedgerow sub -F`, with the time at which a message was received.
"""
WORDS_AFTER = {"ls": "DIR", "cat": "DIR", "export": "DIR", "verify": "DIR"}
"""What a shell completes."""

DAMAGED = 1  # exit status


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Show, export and verify what is in a journal."
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    parser.usage = USAGE
    parser.add_argument("words", nargs="*", metavar="COMMAND", help="ls, cat, export or verify, and of what")
    which = parser.add_argument_group("messages (all)")
    which.add_argument(
        "-t", "--topic", type=topic_filter, action="append", help="only of these topics; may be repeated"
    )
    add_beginnings(which, "what was received")
    which.add_argument("-C", dest="count", type=whole(1), metavar="N", help="N messages at most")
    shape = parser.add_argument_group("output")
    shape.add_argument("--topics", action="store_true", help="ls: topics, and how many messages each has")
    shape.add_argument("-v", "--verbose", action="store_true", help="cat: print the topic too")
    shape.add_argument("-F", dest="format", metavar="FORMAT", help="cat: print in this format")
    shape.add_argument("-o", "--json", action="store_true", help="cat: one JSON object a line")


def run(arguments: argparse.Namespace) -> int:
    command, *words = arguments.words or [""]
    if command not in COMMANDS:
        from hedgerow.cli.mistakes import none_of

        nothing = f"what to do? There are {', '.join(COMMANDS)}"
        raise UsageError(none_of(command, COMMANDS) if command else nothing)
    if not words:
        raise UsageError(f"{command} DIR: which journal?")
    return COMMANDS[command](arguments, words)


def _filters(arguments: argparse.Namespace) -> tuple[str, ...]:
    return tuple(arguments.topic or ("#",))


def _start(arguments: argparse.Namespace) -> Start:
    if arguments.since is None:
        return EVERYTHING
    return read_start(arguments.since, time())


def _one(command: str, words: list[str]) -> Path:
    if len(words) != 1:
        raise UsageError(f"{command} DIR: one journal at a time")
    return Path(words[0])


# The commands


def _list(arguments: argparse.Namespace, words: list[str]) -> int:
    for word in words:
        directory = Path(word)
        if arguments.topics:
            counts = count_topics(directory, _start(arguments), _filters(arguments))
            for topic, count in sorted(counts.items()):
                print(f"{count:>12,}  {escape_controls(topic)}")
            continue
        found = list_segments(directory)
        first = found[0].first_position if found else end_of(directory)
        total = sum(each.bytes for each in found)
        print(f"{directory}: journal {journal_id(directory)}")
        print(f"positions {first:,} to {end_of(directory):,}, {total:,} bytes in {len(found)} segments")
        for each in found:
            span = f"{_time(each.earliest)}  {_time(each.latest)}"
            print(
                f"{each.first_position:>14,}  {each.end_position - each.first_position:>12,}"
                f"  {each.bytes:>14,}  {span}  {each.name}"
            )
        for reader, position in committed_positions(directory).items():
            print(f"taken by {reader}: up to {position:,}")
    return 0


def _time(at: float | None) -> str:
    return "-" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _cat(arguments: argparse.Namespace, words: list[str]) -> int:
    is_shown = sys.stdout.isatty()
    write: Piece
    if arguments.json or arguments.format is not None:
        write = compile_format(arguments.format or "%j", b"\n", False, is_shown)
    elif arguments.verbose:
        write = print_verbosely(b"\n", is_shown)
    else:
        write = print_payload(b"\n", is_shown)
    for each in _chosen(arguments, _one("cat", words)):
        sys.stdout.buffer.write(write(_received(each), round(each.received_at * 1e9)))
    sys.stdout.buffer.flush()
    return 0


def _chosen(arguments: argparse.Namespace, directory: Path) -> Iterator[RecordedMessage]:
    return islice(recorded(directory, _start(arguments), _filters(arguments)), arguments.count)


def _received(each: RecordedMessage) -> MessageReceived:
    message = each.message
    return MessageReceived(
        message.topic, message.payload, message.qos, message.retain, message.properties, message.id
    )


def _export(arguments: argparse.Namespace, words: list[str]) -> int:
    if len(words) != 2:
        raise UsageError("export DIR FILE: from where, to where?")
    directory, file = Path(words[0]), Path(words[1])
    write = EXPORTS.get(file.suffix)
    if write is None:
        raise ConfigError(f"{file}: ends in none of {', '.join(EXPORTS)}")
    count = write(arguments, directory, file)
    print(f"{file}: {count:,} messages")
    return 0


def _export_lines(arguments: argparse.Namespace, directory: Path, file: Path) -> int:
    count = 0
    with file.open("w", encoding="utf-8") as output:
        for each in _chosen(arguments, directory):
            found = {"position": each.position, "client": each.client, "broker": each.broker}
            found |= describe(_received(each), round(each.received_at * 1e9))
            try:
                found["payload"] = each.message.payload.decode()
            except UnicodeDecodeError:
                found["payload_base64"] = b64encode(each.message.payload).decode()
            output.write(json.dumps(found, ensure_ascii=False) + "\n")
            count += 1
    return count


def _export_table(arguments: argparse.Namespace, directory: Path, file: Path) -> int:
    filters = _filters(arguments)
    reader = JournalReader(directory)
    first = find_position(directory, _start(arguments), filters, reader.end_position)
    left: int = arguments.count or sys.maxsize
    written = 0
    module, name = TABLE_WRITERS[file.suffix]
    with getattr(need(module), name)(str(file), reader.schema()) as writer:
        for batch in reader.batches(first, topic_filters=filters):
            part = batch.slice(0, left - written)
            writer.write_batch(part)
            written += part.num_rows
            if written == left:
                break
    return written


def _verify(arguments: argparse.Namespace, words: list[str]) -> int:
    reports = [check(Path(word)) for word in words]
    for word, report in zip(words, reports, strict=True):
        print(f"{word}: {report}")
    return 0 if all(report.is_whole for report in reports) else DAMAGED


TABLE_WRITERS = {".parquet": ("pyarrow.parquet", "ParquetWriter"), ".csv": ("pyarrow.csv", "CSVWriter")}
EXPORTS: dict[str, Callable[[argparse.Namespace, Path, Path], int]] = {
    ".jsonl": _export_lines,
    ".parquet": _export_table,
    ".csv": _export_table,
}
COMMANDS = {"ls": _list, "cat": _cat, "export": _export, "verify": _verify}
