"""docs/reference/commands.md: every command, its options and its exit statuses, from the parsers."""

from __future__ import annotations

import argparse
from collections import Counter

from hedgerow import cli
from hedgerow.kinds import NODE
from reference_pages.configuration import KINDS
from reference_pages.source import code, docstring, head, table

Rows = tuple[tuple[str, str], ...]
Groups = dict[str, Rows]


def page() -> str:
    lines = head("Every command", "`hedgerow COMMAND --help` says the same, shorter.")
    commands = (
        (f"[`hedgerow {name}`](#hedgerow-{name})", each.help) for name, each in cli.all_commands().items()
    )
    lines += [*table(("command", ""), commands), *_exit_statuses()]
    parsers = {name: _parser(name) for name in cli.all_commands()}
    groups = {name: _groups(name, parser) for name, parser in parsers.items()}
    times = Counter((title, rows) for found in groups.values() for title, rows in found.items() if title)
    shared = {title: rows for (title, rows), count in times.items() if count > 1}
    for name in cli.all_commands():
        lines += [f"## `hedgerow {name}`", "", *_said(docstring(cli.module_of(name)))]
        if name in KINDS:
            lines += [
                "Every key of [the configuration](configuration.md) whose *for* names it is an option.",
                "",
            ]
        listed = [row for title, own in groups[name].items() if shared.get(title) != own for row in own]
        lines += table(("argument", ""), listed) if listed else []
        elsewhere = [title for title, own in groups[name].items() if shared.get(title) == own]
        if elsewhere:
            links = ", ".join(f"[{title.partition(' (')[0]}](#{_anchor(title)})" for title in elsewhere)
            lines += [f"And the shared options: {links}.", ""]
        lines += _examples(parsers[name].epilog or "")
    lines += ["## Shared options", ""]
    for title, rows in shared.items():
        lines += [f"### Options: {title.partition(' (')[0]}", "", *table(("argument", ""), rows)]
    return "\n".join(lines)


def _anchor(title: str) -> str:
    return f"options-{title.partition(' (')[0].replace(' ', '-')}"


def _parser(name: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"hedgerow {name}", add_help=False)
    cli.module_of(name).add_arguments(parser)
    return parser


def _groups(name: str, parser: argparse.ArgumentParser) -> Groups:
    """Rows by the title of their group; "" for what has none."""
    keys = {key.name for key in NODE.known_keys} if name in KINDS else set()
    return _groups_of(parser, keys)


def _examples(epilog: str) -> list[str]:
    lines = [line[2:] for line in epilog.splitlines() if line.startswith("  ")]
    return ["```text", *lines, "```", ""] if lines else []


def _exit_statuses() -> list[str]:
    statuses = ((str(status), text) for status, text in cli.EXIT_CODES.items())
    return ["## Exit statuses", "", *table(("status", ""), statuses)]


def _said(text: str) -> list[str]:
    """A docstring: paragraphs as they are, what is indented as a block of text."""
    lines: list[str] = []
    for paragraph in text.split("\n\n"):
        is_block = all(line.startswith("    ") for line in paragraph.splitlines())
        if is_block:
            lines += ["```text", *(line[4:] for line in paragraph.splitlines()), "```", ""]
        else:
            lines += [" ".join(paragraph.split()), ""]
    return lines


def _groups_of(parser: argparse.ArgumentParser, left_out: set[str]) -> Groups:
    formatter = argparse.HelpFormatter(parser.prog)
    groups: dict[str, list[tuple[str, str]]] = {}
    for group in parser._action_groups:
        title = group.title if group.title not in ("positional arguments", "options", None) else ""
        rows = groups.setdefault(title or "", [])
        for action in group._group_actions:
            if action.help == argparse.SUPPRESS or action.dest in left_out:
                continue
            if isinstance(action, argparse._SubParsersAction):
                for word, below in action.choices.items():
                    groups[word] = [row for own in _groups_of(below, {"help"}).values() for row in own]
                continue
            rows.append((_form(action), formatter._expand_help(action) if action.help else ""))
    return {title: tuple(rows) for title, rows in groups.items() if rows}


def _form(action: argparse.Action) -> str:
    value = action.metavar or (action.dest.upper() if action.nargs != 0 else "")
    if action.choices and not action.metavar:
        value = "|".join(map(str, action.choices))
    if isinstance(value, tuple):
        value = " ".join(value)
    if not action.option_strings:
        return code(f"{value}…" if action.nargs in ("*", "+") else value)
    if action.nargs == 0:
        return ", ".join(map(code, action.option_strings))
    value = f"[{value}]" if action.nargs == "?" else f"{value}…" if action.nargs in ("*", "+") else value
    return ", ".join(map(code, [*action.option_strings[:-1], f"{action.option_strings[-1]} {value}"]))
