"""Origins of ids that only a part of a node gives: all of them, in one table.

The origin of an id is the name of a node, or an alias, `NAME~REST` (`broker/ids.py`). NAME is that of a
user, or begins with "!". What stands here stands before a ":" in it, as in `!to:NAME`. No name of a node has
one of these three characters, and no other name that anybody gives is written with them in an alias. So
whatever a user, a link, a mobile broker or a node is called, nobody gives ids of these kinds but who has a
line here.
"""

from __future__ import annotations

OF_TOPIC = "as"
"""A message that had another topic before."""
OF_LINK_THERE = "to"
"""What a broker says that this node dialled, and that did not prove to be a node."""
OF_USERS_LINK = "user"
"""What a bridge says that has logged in as a user."""
OF_GATEWAY = "document"
"""What federators say that are not ours."""

KINDS = (OF_TOPIC, OF_LINK_THERE, OF_USERS_LINK, OF_GATEWAY)
