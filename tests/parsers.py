"""What a parser knows, which argparse shows in its help alone."""

from __future__ import annotations

import argparse


def actions_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return parser._actions
