"""A topic line of a bridge: which topics it carries, which way, and what each is called on the other side.

The local and the remote name of a topic are one to one. A line never gives a topic a name that its own filter
for that side does not match: so a local `site/$SYS/broker/bridge/new` does not become a command to the far
broker under `topic # out 0 site/ ""`, where `#` does not match what begins with `$`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hedgerow.bridges.values import check_characters, check_topic, one_of, quote, whole_number
from hedgerow.errors import ConfigError, TopicError
from hedgerow.topics import matches, validate_filter, validate_name

DIRECTION = one_of("out", "in", "both")
QOS = whole_number(0, 2)
EMPTY = '""'
DEFAULTS = (EMPTY, "out", "0", EMPTY, EMPTY)


@dataclass(slots=True, frozen=True)
class TopicLine:
    """`topic PATTERN [DIRECTION [QOS [LOCAL_PREFIX [REMOTE_PREFIX]]]]`. Raises ConfigError."""

    pattern: str
    """Empty: the line is for one topic, which the prefixes name."""
    direction: str = "out"
    qos: int = 0
    local_prefix: str = ""
    remote_prefix: str = ""
    local_filter: str = field(init=False, repr=False, compare=False)
    remote_filter: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        DIRECTION.read(self.direction)
        QOS.read(str(self.qos))
        if not self.pattern and not (self.local_prefix and self.remote_prefix):
            raise ConfigError('an empty pattern "" needs a local and a remote prefix, which are the topic')
        for word in (self.pattern, self.local_prefix, self.remote_prefix):
            _check_word(word)
        for side, prefix in (("local", self.local_prefix), ("remote", self.remote_prefix)):
            try:
                if prefix:
                    check_topic(validate_name, prefix)
                check_topic(validate_filter, prefix + self.pattern)
            except ConfigError as error:
                raise ConfigError(f"{side} side: {error}") from None
            if (prefix + self.pattern).startswith("$share/"):
                raise ConfigError(f"{side} side: a shared subscription cannot be carried by a bridge")
            object.__setattr__(self, f"{side}_filter", prefix + self.pattern)

    @property
    def is_out(self) -> bool:
        return self.direction != "in"

    @property
    def is_in(self) -> bool:
        return self.direction != "out"

    def to_remote(self, topic: str) -> str | None:
        """What this local topic is called on the far side, whatever the direction; None: not of this line."""
        return _rename(topic, self.local_filter, self.local_prefix, self.remote_filter, self.remote_prefix)

    def to_local(self, topic: str) -> str | None:
        """What this topic of the far side is called here, whatever the direction; None: not of this line."""
        return _rename(topic, self.remote_filter, self.remote_prefix, self.local_filter, self.local_prefix)

    def __str__(self) -> str:
        """The line without its first word, and without what is the default at its end."""
        fields = (self.pattern, self.direction, str(self.qos), self.local_prefix, self.remote_prefix)
        words = [word or EMPTY for word in fields]
        while len(words) > 1 and words[-1] == DEFAULTS[len(words) - 1]:
            words.pop()
        return " ".join(words)


def read_topic_line(text: str) -> TopicLine:
    """From what stands after `topic`. Raises ConfigError with the reason alone."""
    words = [word for word in text.split(" ") if word]
    if not words:
        raise ConfigError("has no pattern")
    if len(words) > 5:
        expected = "PATTERN DIRECTION QOS LOCAL_PREFIX REMOTE_PREFIX"
        raise ConfigError(f"{quote(words[5])} is one word too many after {expected}")
    pattern, direction, qos, local_prefix, remote_prefix = [*words, *DEFAULTS[len(words) :]]
    return TopicLine(
        _unquote(pattern),
        DIRECTION.read(direction.lower()),
        QOS.read(qos),
        _unquote(local_prefix),
        _unquote(remote_prefix),
    )


def _unquote(word: str) -> str:
    return "" if word == EMPTY else word


def _check_word(word: str) -> None:
    check_characters(word)
    if " " in word:
        raise ConfigError(f"{quote(word)} contains a blank, which a section cannot write")
    if word.startswith('"'):
        raise ConfigError(f'{word[:60]} begins with a quotation mark; only "" may, for nothing')


def _rename(topic: str, its_filter: str, its_prefix: str, other_filter: str, other_prefix: str) -> str | None:
    if not matches(its_filter, topic):
        return None
    # §4.7.1.2: "sport/#" matches "sport" too, which lacks the slash of the prefix "sport/".
    is_parent = not topic.startswith(its_prefix)
    other = other_prefix[:-1] if is_parent else other_prefix + topic[len(its_prefix) :]
    try:
        validate_name(other)
    except TopicError:
        return None
    return other if matches(other_filter, other) else None
