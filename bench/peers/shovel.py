"""A dynamic shovel of RabbitMQ that moves one queue into another, timed inside the node."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

LOOK_MS: Final = 10
"""Between two looks at the queues of a shovel, of a round that takes seconds."""

CLASSIC: Final = "[{messages, N}] = rabbit_amqqueue:info(Q, [messages]), N"
QUORUM: Final = (
    "{ok, {_, N}, _} ="
    " ra:local_query(amqqueue:get_pid(Q), fun rabbit_fifo:query_messages_total/1), N"
)
"""How many messages a queue `Q` has, unacknowledged ones included. What `info` says of a quorum
queue is some seconds old."""


def shovel(
    evaluate: Callable[[str], str],
    source: str,
    destination: str,
    messages: int,
    *,
    prefetch: int | None = None,
    count: str = CLASSIC,
    protocol: str = "amqp091",
) -> float:
    """Have a shovel move all that `source` holds; the seconds that took.

    A command line of its own takes longer than a round. `evaluate` runs an expression of Erlang in
    the node.
    """
    ends = {"src": source, "dest": destination}
    definition: dict[str, str | int] = {
        **{f"{end}-protocol": protocol for end in ends},
        **{f"{end}-uri": "amqp://" for end in ends},
        **{f"{end}-queue": queue for end, queue in ends.items()},
        "ack-mode": "on-confirm",
    }
    if prefetch is not None:
        definition["src-prefetch-count"] = prefetch
    answer = evaluate(
        "Count = fun(Name) ->"
        ' {ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, Name)),'
        f" {count} end,"
        f'Wait = fun W() -> case {{Count(<<"{source}">>), Count(<<"{destination}">>)}} of'
        f" {{0, {messages}}} -> ok; _ -> timer:sleep({LOOK_MS}), W() end end,"
        "Began = erlang:monotonic_time(microsecond),"
        'ok = rabbit_runtime_parameters:parse_set(<<"/">>, <<"shovel">>, <<"bench">>,'
        f" <<{json.dumps(json.dumps(definition))}>>, none),"
        "ok = Wait(),"
        "Took = erlang:monotonic_time(microsecond) - Began,"
        'rabbit_runtime_parameters:clear(<<"/">>, <<"shovel">>, <<"bench">>, none),'
        "Took."
    )
    return int(answer.strip()) / 1e6
