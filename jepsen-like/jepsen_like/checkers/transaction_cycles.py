"""Anomaly: transactions that read each other's records in a circle (G1c over wr edges).

One comes before another if the other read what it wrote, or if it was over before the other began.
Counts circles in which anybody read. Circles that need the order of writes as well (G0, and the
like) are legal, as nothing isolates writers: a figure only.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

from jepsen_like.checkers.finding import Finding, Findings
from jepsen_like.checkers.transaction_columns import NEVER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jepsen_like.checkers.account import Account
    from jepsen_like.checkers.transaction_columns import Transaction

# Transactions by number; moments, of which each comes before the next, by event, negative.
Graph: TypeAlias = dict[int, set[int]]
Edge: TypeAlias = tuple[int, int]


def check(account: Account) -> list[Finding]:
    found, legal = Findings("circular-reads"), 0
    of = account.transactions
    happened = {one.number: one for one in of.happened}
    reads = _read_edges(account, happened)
    if reads:
        times = _time_edges(happened.values())
        for circle in _circles([*reads, *times], reads):
            found.add(lambda circle=circle: _sentence(circle, happened))  # type: ignore[misc]
        writes = _write_edges(account, happened)
        legal = len(_circles([*reads, *times, *writes], reads)) - found.count
    return [found.finding(circles_with_writes=max(0, legal), reads_between=len(reads))]


def _read_edges(account: Account, happened: dict[int, Transaction]) -> set[Edge]:
    """From who wrote to who read; reads within the transaction itself are another checker's."""
    edges: set[Edge] = set()
    for key in account.keys.values():
        for read in key.reads:
            reader = account.transactions.reader_of(read)
            if reader not in happened:
                continue
            writers = (key.in_transaction(value) for value in read.values)
            edges |= {(one, reader) for one in writers if one in happened and one != reader}
    return edges


def _time_edges(happened: Iterable[Transaction]) -> list[Edge]:
    """By moments: one for each transaction that was over, before all that began after it."""
    ones = list(happened)
    moments = sorted({int(one.over_at) for one in ones if one.over_at < NEVER})
    edges = [(-before - 1, -after - 1) for before, after in pairwise(moments)]
    edges += [(one.number, -int(one.over_at) - 1) for one in ones if one.over_at < NEVER]
    place, last = 0, None
    for one in sorted(ones, key=lambda one: one.began):
        while place < len(moments) and moments[place] < one.began:
            last, place = moments[place], place + 1
        if last is not None:
            edges.append((-last - 1, one.number))
    return edges


def _write_edges(account: Account, happened: dict[int, Transaction]) -> set[Edge]:
    edges: set[Edge] = set()
    for key in account.keys.values():
        numbers = (key.in_transaction(key.order.at[offset]) for offset in key.order.offsets)
        writers = [one for one in numbers if one is not None and one in happened]
        edges |= set(pairwise(writers))
    return {(one, other) for one, other in edges if one != other}


def _circles(edges: Iterable[Edge], reads: set[Edge]) -> list[list[int]]:
    """The components that are strongly connected and hold an edge of a read."""
    graph: Graph = defaultdict(set)
    for one, other in edges:
        graph[one].add(other)
    component = {node: number for number, nodes in enumerate(_components(graph)) for node in nodes}
    held: dict[int, list[int]] = defaultdict(list)
    for node, number in component.items():
        if node >= 0:
            held[number].append(node)
    wanted = {component[one] for one, other in reads if component[one] == component[other]}
    return [sorted(held[number]) for number in sorted(wanted)]


def _components(graph: Graph) -> list[list[int]]:
    """Kosaraju's algorithm, without recursion: there are thousands of transactions."""
    back: Graph = defaultdict(set)
    for one, others in graph.items():
        for other in others:
            back[other].add(one)
    nodes = list({*graph, *back})
    visited: set[int] = set()
    order = [node for start in nodes for node in _finished(graph, start, visited)]
    visited = set()
    found = (_finished(back, start, visited) for start in reversed(order))
    return [component for component in found if component]


def _finished(graph: Graph, start: int, visited: set[int]) -> list[int]:
    """What can be reached from there and was not visited, in the order of leaving it."""
    if start in visited:
        return []
    visited.add(start)
    done, stack = [], [(start, iter(graph.get(start, ())))]
    while stack:
        node, others = stack[-1]
        for other in others:
            if other not in visited:
                visited.add(other)
                stack.append((other, iter(graph.get(other, ()))))
                break
        else:
            done.append(node)
            stack.pop()
    return done


def _sentence(circle: list[int], happened: dict[int, Transaction]) -> str:
    return f"a circle of {len(circle)}: {', '.join(str(happened[one]) for one in circle[:4])}"
