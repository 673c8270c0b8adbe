"""Topics of a mobile broker that a fixed broker matches: delegated, recovered, and each event notified once.

`MobileSide` and `FixedSide` are the machines of the two brokers, `publications` is what they write to each
other, `Stream` has it come once and in order, `codec` has topics and bytes, `bloom` the counting Bloom filter
in which sets of subscribers travel.

Each subscriber is notified of each event exactly once, since for each event and each topic one broker alone
matches, and both know which. The protocol, on the two streams of `stream.py`:

1. A topic is *active* (matched by the mobile broker: "here") or *delegated*. The fixed broker holds, for each
   topic filter, either the mobile broker's own callback (`@BROKER`: it is sent the event, and matches) or
   those of the subscribers.
2. Delegation: DELEGATE is written as number n of the process plane, and from then on events published here
   are not matched for that topic, but written to the fixed broker, and say that n was written before: it
   knows the topic when it reads them. Events from outside say how much of the process plane the fixed
   broker had handled when it wrote them: below n they are matched here, from n on it has matched them.
3. Recovery: RECOVER is written as n; events published here are matched here from then on, and the fixed
   broker leaves the topic out of those that say n. Its answer RECOVERED says from when events come
   unmatched. A delegation that it refuses is answered by RECOVERED as well. The process plane may be ahead
   of events, so the fixed broker keeps what a topic was before, until events from then have been read
   (`Mobile.undone`), and the mobile broker changes what it matches of the fixed broker's events when those
   say so (`Uplink.advance`).
4. One publication for an event, each way: EVENT says who is notified already and whom the fixed broker is to
   notify (clients that moved there); NOTIFY says who is to be notified without matching (the callbacks of
   those whom the fixed broker cannot reach), who is notified already, and whether there is something to match
   too. The mobile broker asks of each callback whether it is still a subscriber, and of nobody else. Whom the
   fixed broker serves itself, as their clients are there, is not among them: of a client that comes or goes
   the two learn at different times, so what counts is who was there when NOTIFY was written.
5. An event published here is *unsettled* until the fixed broker has handled it and the clients that are there
   have got it, with those who were notified of it (`done`). The fixed broker's notifications for it come
   before that, and what a client there did not get and is handed back; who is done is left out. Afterwards,
   and for events from outside after their first coming, its id is in the `DuplicateLog` and whatever comes is
   a duplicate: by another fixed broker, by another way, hours later.
6. A fixed broker that is away for `takeover_after_s` is lost: everything is active, and what is unsettled is
   matched here for all who are not done. When it comes back, it is told RECOVER, and its late notifications
   meet 5. If one has forgotten the other, both streams begin anew: topics first, then what is unsettled. One
   that is away when another takes its place is forgotten at once.
7. Moving: the new fixed broker is told every topic before the old one is asked for everything
   (`delegate/deactivate/all`) and then to forget (`delegate/unsubscription/all`). Meanwhile what comes by
   both comes whole by each, so the first counts. Clients are called back before, and sent to the new one
   when the old one is left (`may_send_clients`).
8. A client that is to go to the fixed broker is announced before, so that its session is known there. Its
   subscriptions stay the mobile broker's: what it asks for at the fixed broker is written to its owner.

What nobody can decide: a client that was at a fixed broker when that was lost may have got what is unsettled.
It gets it from the mobile broker when it comes back, marked `is_again`. If the fixed broker has forgotten all
and is written it again, it does not know to whom of other mobile brokers it has delivered it: what comes of
that is marked too. So is what comes back of two copies that followed a client there, when the first had been
given up as lost.

What is lost with a fixed broker that forgets: events from outside, and of other mobile brokers, that waited
there, unless who has stored them brings them again (`make_up`, `client_left`); and what clients had asked for
there and the mobile broker was not yet told.
"""
