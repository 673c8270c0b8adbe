"""The parser of every command: argparse, whose complaints say what would be right.

What argparse finds wrong leaves as a UsageError, which `cli.mistakes` words and `main` ends with an example.
Options and words may be mixed, and an option may be cut short where that is not ambiguous.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from hedgerow.errors import ConfigError

VALUES: dict[object, str] = {int: "a whole number", float: "a number"}
"""What a value is called that is no such thing."""


class UsageError(ConfigError):
    """The command line itself is wrong: an option or a word that is none, is missing, or is too many."""


def _formatter_for_adding(prog: str) -> argparse.HelpFormatter:
    """argparse tries each argument that is added with a formatter. Without a width it would measure the
    terminal for each, with a module that loads three compression libraries."""
    return argparse.HelpFormatter(prog, width=80)


class Parser(argparse.ArgumentParser):
    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog=prog, description=description, exit_on_error=False)
        self.formatter_class = _formatter_for_adding

    def format_help(self) -> str:
        self.formatter_class = argparse.HelpFormatter
        return super().format_help()

    def format_usage(self) -> str:
        self.formatter_class = argparse.HelpFormatter
        return super().format_usage()

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """What was asked for. Raises UsageError for a mistake, SystemExit when help has been printed."""
        try:
            namespace, left = self.parse_known_intermixed_args(list(words))
        except argparse.ArgumentError as error:
            from hedgerow.cli.mistakes import explain

            # Told before what argparse saw first: an option that is missing is often one that is misspelt.
            raise UsageError(self._unknown(words) or explain(self, error)) from None
        if left:
            from hedgerow.cli.mistakes import unknown_option, word_too_many

            option = next((word for word in left if word.startswith("-") and word != "-"), None)
            about = unknown_option(self, option) if option is not None else word_too_many(self, left[0])
            raise UsageError(self._unknown(words) or about)
        return namespace

    def error(self, message: str) -> NoReturn:
        raise argparse.ArgumentError(None, message)

    def _unknown(self, words: Sequence[str]) -> str | None:
        from hedgerow.cli.mistakes import wrong_option

        return wrong_option(self, words)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            from hedgerow.cli.mistakes import none_of

            raise argparse.ArgumentError(action, none_of(str(value), map(str, action.choices)))

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        try:
            return super()._get_value(action, arg_string)
        except ConfigError as error:
            raise argparse.ArgumentError(action, str(error)) from None
        except argparse.ArgumentError:
            if action.type in VALUES:
                reason = f'"{arg_string}" is not {VALUES[action.type]}'
                raise argparse.ArgumentError(action, reason) from None
            raise
