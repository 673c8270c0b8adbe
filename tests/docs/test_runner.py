"""The runner notices when a page does not do what it says, and leaves nothing running."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.markdown import Block, PageError, read_blocks
from tests.docs.runner import outside_programs, run_blocks

NODE = '```sh terminal=node until="listening http"\nhedgerow up --id barn\n```\n'


def page(folder: Path, text: str) -> list[Block]:
    path = folder / "page.md"
    path.write_text(text)
    return read_blocks(path, "page.md")


def run(folder: Path, text: str) -> int:
    work = folder / "work"
    work.mkdir()
    return run_blocks(page(folder, text), work)


def test_commands_run_in_order_in_one_directory(tmp_path: Path) -> None:
    text = (
        "```sh\necho one >file\n```\n\n"
        "```console\n$ cat file\none\n$ ls -a file \\\n>  .venv/bin/hedgerow\n...\n```\n"
    )
    assert run(tmp_path, text) == 3


def test_terminals_run_until_the_end(tmp_path: Path) -> None:
    text = (
        NODE
        + "```console\n$ hedgerow pub -t a -m 1 -r\n```\n"
        + "```console terminal=reader\n$ hedgerow sub -v -t '#'\na 1\n```\n"
        + "```sh\nhedgerow pub -t b -m 2\n```\n```console terminal=reader\nb 2\n```\n"
    )
    assert run(tmp_path, text) == 4


def test_a_file_is_written_and_a_program_is_run(tmp_path: Path) -> None:
    text = (
        "```conf file=conf/words\nhedge\n```\n```json\n{}\n```\n"
        "```python\nprint(open('conf/words').read().strip() + 'row')\n```\n```console\nhedgerow\n```\n"
    )
    assert run(tmp_path, text) == 1


def test_eventually_is_tried_again(tmp_path: Path) -> None:
    assert run(tmp_path, "```console eventually\n$ echo x >>file; wc -l <file\n3\n```\n") == 1


def test_what_cannot_be_run_is_not(tmp_path: Path) -> None:
    assert run(tmp_path, "```sh no-run\nfalse\n```\n```sh file=script\nfalse\n```\n") == 0


def test_machines_know_each_other_by_name(tmp_path: Path) -> None:
    text = (
        '```sh terminal=far host=house until="listening mqtt"\nhedgerow up --mqtt "*:1883" --anonymous\n```\n'
        "```sh\nhedgerow pub -h house -t a -m 1\nhedgerow pub -h 10.0.0.2 -t a -m 1\n```\n"
    )
    assert run(tmp_path, text) == 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("```sh\nfalse\ntrue\n```\n", "ended with 1", id="a command that fails"),
        pytest.param("```sh\nfalse | true\n```\n", "ended with 1", id="a command that fails in a pipe"),
        pytest.param("```console\n$ echo one\ntwo\n```\n", "has printed", id="another output"),
        pytest.param("```console\n$ echo one; echo two\none\n```\n", "has printed", id="more output"),
        pytest.param("```console\n$ echo one\n```\n", "has printed", id="output where none is shown"),
        pytest.param("```console fails\n$ true\n```\n", "ended with 0", id="success that should fail"),
        pytest.param("```python\n1 / 0\n```\n", "ended with 1", id="a program that fails"),
        pytest.param(
            "```sh\necho 1\n```\n```console\n2\n```\n", "before has printed", id="another output before"
        ),
        pytest.param(
            '```sh terminal=a until="x"\nexit 3\n```\n', "a ended with 3", id="a terminal that ends"
        ),
        pytest.param("```console terminal=a\nx\n```\n", "no terminal a", id="an unknown terminal"),
        pytest.param(
            '```sh terminal=a until="x"\necho $$ >pid; echo x; exit 3\n```\n'
            "```sh\nuntil grep -q '^State:.Z' /proc/$(cat pid)/status; do :; done\n```\n",
            "a ended with 3",
            id="a later end",
        ),
    ],
)
def test_what_goes_wrong_is_noticed(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(PageError, match=says):
        run(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("```\nls\n```\n", "without a language"),
        ("```sh terminal=a\nls\n```\n", "needs until="),
        ("```sh norun\nls\n```\n", "'norun' means nothing"),
        ("```conf\nlistener 1883\n```\n", "neither run nor checked"),
        ("Run:\n\n    hedgerow up\n", "code by indentation"),
        ("```sh\nls\n", "does not end"),
    ],
)
def test_a_block_that_nobody_could_run_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(PageError, match=says):
        page(tmp_path, text)


def test_a_second_block_for_a_terminal_presses_control_c(tmp_path: Path) -> None:
    assert run(tmp_path, NODE + NODE + "```sh\nhedgerow pub -t a -m 1\n```\n") == 3


def test_control_c_is_a_line(tmp_path: Path) -> None:
    text = NODE + "```console terminal=node\n^C\n...\n... node barn has stopped\n```\n"
    assert run(tmp_path, text + "```console fails\n$ hedgerow pub -t a -m 1\n...refused...\n```\n") == 2


def test_what_is_left_in_the_background_is_ended(tmp_path: Path) -> None:
    # The fixture `nothing_left_behind` fails this test if it is not.
    assert run(tmp_path, "```sh\nsleep 1000 &\n```\n") == 1


def test_programs_of_others_are_found_in_commands_alone(tmp_path: Path) -> None:
    text = "mosquitto\n\n```sh\necho nc | curl x\n```\n```console\n$ openssl version\nnc\n```\n"
    assert outside_programs(page(tmp_path, text)) == {"curl", "openssl"}
