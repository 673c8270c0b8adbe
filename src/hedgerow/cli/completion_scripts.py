"""Scripts that complete commands, for bash, zsh and fish: from what there is to complete to text.

Each has everything in it as plain lists, so that a TAB starts no program but the shell's own.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

NOTHING, ANYTHING, FILE, DIRECTORY = "nothing", "anything", "file", "directory"


class CompletedValue(NamedTuple):
    """What may stand somewhere: NOTHING, ANYTHING, FILE, DIRECTORY, or one of `choices`."""

    kind: str
    choices: tuple[str, ...] = ()


class CompletedOption(NamedTuple):
    names: tuple[str, ...]
    value: CompletedValue
    help: str


class CompletedCommand(NamedTuple):
    name: str
    help: str
    options: tuple[CompletedOption, ...]
    words: CompletedValue
    """The words, or the first of them."""
    after: dict[str, CompletedValue]
    """What may follow a word."""


def _names_by_value(command: CompletedCommand) -> dict[CompletedValue, list[str]]:
    """The options that take a value, by what it may be."""
    by_value: dict[CompletedValue, list[str]] = {}
    for option in command.options:
        if option.value.kind != NOTHING:
            by_value.setdefault(option.value, []).extend(option.names)
    return by_value


def _takes(command: CompletedCommand) -> list[str]:
    """The options that take a value: the word behind one of them is no word of the command's."""
    return [name for names in _names_by_value(command).values() for name in names]


# bash

_BASH = r"""# hedgerow: completion for bash, made by `hedgerow completion bash`.
_hedgerow_offer() {
    local line
    while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen "$@" -- "$current")
}
_hedgerow_files() { compopt -o filenames 2>/dev/null; _hedgerow_offer -f; }
_hedgerow_directories() { compopt -o filenames 2>/dev/null; _hedgerow_offer -d; }

_hedgerow() {
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]}
    local options='' takes='' words='' first='' word i
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        _hedgerow_offer -W '@COMMANDS@ --help --version'
        return
    fi
    # bash cuts --option=value into three words.
    if [[ $current == = ]]; then
        current=
    elif [[ $previous == = ]]; then
        previous=${COMP_WORDS[COMP_CWORD-2]}
    fi
    case "$command $previous" in
@VALUES@
    esac
    case "$command" in
@OPTIONS@
    esac
    if [[ $current == -* ]]; then
        _hedgerow_offer -W "$options"
        return
    fi
    for ((i = 2; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if [[ $takes == *" $word "* ]]; then
            [[ ${COMP_WORDS[i+1]} == = ]] && ((i++))
            ((i++))
        elif [[ $word != -* && " $words " == *" $word "* ]]; then
            first=$word
            break
        fi
    done
    case "$command $first" in
@WORDS@
    esac
}
complete -F _hedgerow hedgerow
"""


def bash_script(found: Iterable[CompletedCommand]) -> str:
    listed = list(found)
    parts = {
        "COMMANDS": " ".join(command.name for command in listed),
        "VALUES": "\n".join(_bash_values(listed)),
        "OPTIONS": "\n".join(map(_bash_options, listed)),
        "WORDS": "\n".join(_bash_words(listed)),
    }
    return _fill(_BASH, parts)


def _bash_values(found: Iterable[CompletedCommand]) -> Iterator[str]:
    for command in found:
        for value, names in _names_by_value(command).items():
            patterns = "|".join(f'"{command.name} {name}"' for name in names)
            offer = _bash_offer(value)
            yield f"        {patterns}) {f'{offer}; ' if offer else ''}return ;;"


def _bash_options(command: CompletedCommand) -> str:
    options = " ".join(name for option in command.options for name in option.names)
    takes = " ".join(_takes(command))
    words = " ".join(command.words.choices)
    lists = f"options={_quote(options)} takes={_quote(f' {takes} ')} words={_quote(words)}"
    return f"        {command.name}) {lists} ;;"


def _bash_words(found: Iterable[CompletedCommand]) -> Iterator[str]:
    for command in found:
        for word, value in (("", command.words), *command.after.items()):
            if offer := _bash_offer(value):
                yield f"        {_quote(f'{command.name} {word}')}) {offer} ;;"


def _bash_offer(value: CompletedValue) -> str:
    if value.choices:
        return f"_hedgerow_offer -W {_quote(' '.join(value.choices))}"
    return {FILE: "_hedgerow_files", DIRECTORY: "_hedgerow_directories"}.get(value.kind, "")


# zsh

_ZSH = r"""#compdef hedgerow
# hedgerow: completion for zsh, made by `hedgerow completion zsh`.
_hedgerow() {
    local -a commands options takes
    local command first word i
    if ((CURRENT == 2)) && [[ $PREFIX == -* ]]; then
        options=('--help:say what there is' '--version:print the version')
        _describe -o option options
        return
    elif ((CURRENT == 2)); then
        commands=(
@COMMANDS@
        )
        _describe -t commands command commands
        return
    fi
    command=$words[2]
    case $command in
@TAKES@
    esac
    for ((i = 3; i < CURRENT; i++)); do
        word=$words[i]
        if (($takes[(Ie)$word])); then
            ((i++))
            continue
        fi
        case "$command $word" in
@FIRST@
        esac
    done
    # What follows is the command's alone.
    shift words
    ((CURRENT--))
    case $command in
@ARGUMENTS@
    esac
}
# Loaded by compinit it is called at once; sourced, it is only told to zsh.
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _hedgerow "$@"
else
    compdef _hedgerow hedgerow
fi
"""


def zsh_script(found: Iterable[CompletedCommand]) -> str:
    listed = list(found)
    firsts = [
        f"            {_quote(command.name)}\\ ({'|'.join(command.words.choices)})) first=$word; break ;;"
        for command in listed
        if command.words.choices
    ]
    takes = [
        f"        {command.name}) takes=({' '.join(_takes(command))}) ;;"
        for command in listed
        if command.words.choices
    ]
    parts = {
        "COMMANDS": "\n".join(
            f"            {_quote(f'{_zsh_escape(each.name)}:{each.help}')}" for each in listed
        ),
        "TAKES": "\n".join(takes),
        "FIRST": "\n".join(firsts),
        "ARGUMENTS": "\n".join(map(_zsh_arguments, listed)),
    }
    return _fill(_ZSH, parts)


def _zsh_arguments(command: CompletedCommand) -> str:
    specs = [spec for option in command.options for spec in _zsh_option(option)]
    lines = [f"        {command.name})"]
    lines.append("            case $first in")
    for word, value in {"''": command.words, **command.after, "*": CompletedValue(NOTHING)}.items():
        lines.append(f"                {word}) word={_quote(f'*:word:{_zsh_action(value)}')} ;;")
    lines.append("            esac")
    lines.append("            _arguments -s \\")
    lines += [f"                {_quote(spec)} \\" for spec in specs]
    return "\n".join([*lines, '                "$word" ;;'])


def _zsh_option(option: CompletedOption) -> Iterator[str]:
    """Each may be repeated: the shell need not know which."""
    for name in option.names:
        spec = f"*{name}[{_zsh_escape(option.help)}]"
        if option.value.kind == NOTHING:
            yield spec
        else:
            # `--option=value` and `--option value`; of a short one, `-o value` and `-ovalue`.
            equals = "=" if name.startswith("--") else "+"
            spec = f"*{name}{equals}[{_zsh_escape(option.help)}]"
            yield f"{spec}:value:{_zsh_action(option.value)}"


def _zsh_action(value: CompletedValue) -> str:
    if value.choices:
        return f"({' '.join(map(_zsh_escape, value.choices))})"
    return {FILE: "_files", DIRECTORY: "_files -/"}.get(value.kind, " ")


def _zsh_escape(text: str) -> str:
    return "".join(f"\\{letter}" if letter in "[]:\\" else letter for letter in text)


# fish

_FISH = r"""# hedgerow: completion for fish, made by `hedgerow completion fish`.
function __hedgerow_is
    set -l words (commandline -opc)
    test (count $words) -gt 1; and contains -- $words[2] $argv
end
function __hedgerow_begins
    test (count (commandline -opc)) -eq 1
end
function __hedgerow_after
    set -l words (commandline -opc)
    set -l takes
    set -l is_value 0
    switch $words[2]
@TAKES@
    end
    for word in $words[3..-1]
        if test $is_value = 1
            set is_value 0
        else if contains -- $word $takes
            set is_value 1
        else if contains -- $word $argv
            return
        end
    end
    return 1
end
complete -c hedgerow -e
complete -c hedgerow -f
complete -c hedgerow -n __hedgerow_begins -l version -d 'print the version'
complete -c hedgerow -n __hedgerow_begins -l help -d 'say what there is'
@COMMANDS@
"""


def fish_script(found: Iterable[CompletedCommand]) -> str:
    lines: list[str] = []
    takes: list[str] = []
    for command in found:
        if command.words.choices and _takes(command):
            takes.append(f"        case {command.name}\n            set takes {' '.join(_takes(command))}")
        lines.append(
            f"complete -c hedgerow -n __hedgerow_begins -a {command.name} -d {_fish_quote(command.help)}"
        )
        lines += _fish_words(command)
        lines += [_fish_option(command.name, option) for option in command.options]
    return _fill(_FISH, {"TAKES": "\n".join(takes), "COMMANDS": "\n".join(lines)})


def _fish_words(command: CompletedCommand) -> Iterator[str]:
    this = f"__hedgerow_is {command.name}"
    first = f"; and not __hedgerow_after {' '.join(command.words.choices)}" if command.words.choices else ""
    values = [(f"{this}{first}", command.words)]
    values += [(f"{this}; and __hedgerow_after {word}", value) for word, value in command.after.items()]
    for condition, value in values:
        if offer := _fish_offer(value):
            yield f"complete -c hedgerow -n {_fish_quote(condition)} {offer}"


def _fish_option(command: str, option: CompletedOption) -> str:
    names = [f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names]
    # -f: no files, which fish would offer for whatever it knows nothing of.
    value = "" if option.value.kind == NOTHING else f"-r {_fish_offer(option.value) or '-f'} "
    return (
        f"complete -c hedgerow -n '__hedgerow_is {command}' {' '.join(names)} "
        f"{value}-d {_fish_quote(option.help)}"
    )


def _fish_offer(value: CompletedValue) -> str:
    if value.choices:
        return f"-f -a {_fish_quote(' '.join(value.choices))}"
    return {FILE: "-F", DIRECTORY: "-f -a '(__fish_complete_directories)'"}.get(value.kind, "")


def _fish_quote(text: str) -> str:
    inner = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{inner}'"


def _quote(text: str) -> str:
    return shlex.quote(text)


def _fill(template: str, parts: dict[str, str]) -> str:
    for name, text in parts.items():
        template = template.replace(f"@{name}@", text)
    return template


SHELLS: dict[str, Callable[[Iterable[CompletedCommand]], str]] = {
    "bash": bash_script,
    "zsh": zsh_script,
    "fish": fish_script,
}
