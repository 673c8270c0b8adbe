"""`hedgerow rr`: publish a request, and print the response to it, as mosquitto_rr does.

The request names the topic of its response, and has correlation data of its own. A response with other
correlation data answers somebody else, and is not printed; one with none is taken, since a responder need not
send them back.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys

import hedgerow
from hedgerow.cli import client_options
from hedgerow.cli.client_options import Target
from hedgerow.cli.option_values import positive, topic_name
from hedgerow.cli.parsing import UsageError
from hedgerow.cli.pub import add_content_arguments, read_payload
from hedgerow.cli.sub import EXIT_TIMED_OUT, Printer, add_output_arguments
from hedgerow.errors import ConfigError
from hedgerow.message import Message, Properties

EXAMPLES = """\
examples:
  hedgerow rr -t farm/gate/open -e farm/gate/answer -m now
  hedgerow rr mqtt://broker.example -t clock -e clock/answer -n -W 5
"""

CORRELATION_BYTES = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Publish a request, and print the response."
    parser.epilog = EXAMPLES
    parser.usage = "%(prog)s [URL] -t TOPIC -e TOPIC -m MESSAGE [OPTIONS]"
    parser.add_argument("words", nargs="*", metavar="URL", help="where; -L says the same")
    request = parser.add_argument_group("request")
    request.add_argument("-t", "--topic", type=topic_name, help="topic of the request")
    request.add_argument(
        "-e", "--response-topic", type=topic_name, metavar="TOPIC", help="topic of the response"
    )
    add_content_arguments(request)
    request.add_argument("-q", "--qos", type=int, choices=(0, 1, 2), default=0, help="quality of service (0)")
    request.add_argument("-r", "--retain", action="store_true", help="keep the request for later subscribers")
    end = parser.add_argument_group("end")
    end.add_argument(
        "-W", dest="timeout", type=positive(), metavar="S", help="end after S seconds, with status 27"
    )
    add_output_arguments(parser)
    client_options.add_arguments(parser)
    # What a `Printer` of `sub` can be told beside its output.
    parser.set_defaults(count=1, filter_out=[], no_retained=False, retained_only=False)


def run(arguments: argparse.Namespace) -> int:
    words = list(arguments.words)
    target = Target(arguments, client_options.take_url(words))
    topic = arguments.topic or target.topic
    if words:
        raise UsageError(f'what is "{words[0]}"? There is a URL alone')
    if topic is None or arguments.response_topic is None:
        raise UsageError("a request has a topic, -t, and one for its response, -e")
    if (
        arguments.message is None
        and arguments.file is None
        and not (arguments.stdin_file or arguments.null_message)
    ):
        raise UsageError("no request: give it with -m, -f, -s or -n")
    if arguments.protocol_version not in (None, 5):
        raise ConfigError("a request names the topic of its response by MQTT 5: leave out -V, or say -V 5")
    target.arguments |= {"version": 5, "reconnect": False}
    return client_options.run(_ask(arguments, target, topic))


async def _ask(arguments: argparse.Namespace, target: Target, topic: str) -> int:
    payload = await read_payload(arguments)
    printer = Printer(arguments)
    properties: Properties = {
        "correlation_data": secrets.token_bytes(CORRELATION_BYTES),
        **target.properties("publish"),
        "response_topic": arguments.response_topic,
    }
    try:
        async with (
            asyncio.timeout(arguments.timeout),
            hedgerow.connect(target.url, **target.arguments) as bus,
            bus.subscribe(arguments.response_topic, qos=arguments.qos) as responses,
        ):
            await bus.publish(
                topic, payload, qos=arguments.qos, retain=arguments.retain, properties=properties
            )
            async for batch in responses.batches():
                taken = printer.take(
                    [each for each in batch if _answers(each, properties["correlation_data"])]
                )
                if taken:
                    await printer.write(b"".join(printer.output))
                    return 0
        return 0
    except TimeoutError:
        if not arguments.quiet:
            print("hedgerow rr: no response in time", file=sys.stderr)
        return EXIT_TIMED_OUT


def _answers(message: Message, correlation: object) -> bool:
    return not message.retain and message.properties.get("correlation_data", correlation) == correlation
