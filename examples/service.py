"""A web service that takes orders: `python examples/service.py HOST:PORT [HTTP_PORT]`, and then

    curl -i localhost:8000/orders -H 'content-type: application/json' \\
        -d '{"customer": "c-17", "item": "apples"}'
    curl 'localhost:8000/orders/0?offset=0&limit=10'

One client and one producer serve all requests, for as long as the service runs. It needs fastapi
and uvicorn; examples/suite/test_service.py tests it.
"""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import anyio
import uvicorn
from fastapi import FastAPI, HTTPException, Path, Query, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

import raftmq
from raftmq.errors import OffsetOutOfRange, RaftmqError

TOPIC, PARTITIONS, PORT = "service.orders", 6, 8000
DELIVERY_TIMEOUT_MS = 5_000  # a browser does not wait for two minutes, the default
WAIT_SECONDS = 1.0  # for an order to come, before a page is answered that has none
BOOTSTRAP = "RAFTMQ_BOOTSTRAP"  # variable of the environment


class Order(BaseModel):
    customer: str = Field(min_length=1)
    item: str
    count: int = Field(default=1, ge=1)


class Receipt(BaseModel):
    partition: int
    offset: int


class Page(BaseModel):
    """`next_offset`: of the page behind it."""

    orders: list[Order]
    next_offset: int


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[dict[str, Any]]:
    """The service does not start without the cluster, and ends when all orders are delivered."""
    mq = await raftmq.connect(os.environ.get(BOOTSTRAP, "127.0.0.1:9292")).open()
    try:
        topic = await mq.admin.create_topic(TOPIC, partitions=PARTITIONS, if_not_exists=True)
        producer = await mq.producer(delivery_timeout_ms=DELIVERY_TIMEOUT_MS).open()
        try:
            # One that is there already may have another number of partitions.
            yield {"mq": mq, "producer": producer, "partitions": topic.partition_count}
        finally:
            await producer.aclose()
    finally:
        await mq.aclose()


app = FastAPI(title="orders", lifespan=lifespan)


@app.exception_handler(RaftmqError)
async def refuse(_request: Request, error: RaftmqError) -> JSONResponse:
    """Where it is not definite, the order may stand there all the same."""
    status = 404 if isinstance(error, OffsetOutOfRange) else 503
    return JSONResponse({"detail": str(error), "definite": error.definite}, status_code=status)


@app.post("/orders", status_code=201)
async def place(order: Order, request: Request) -> Receipt:
    """Answers once all replicas in sync have the order; those of a customer stay in order."""
    value = order.model_dump_json()
    sent = await request.state.producer.send(TOPIC, value, key=order.customer)
    return Receipt(partition=sent.partition, offset=sent.offset)


@app.get("/orders/{partition}")
async def page(
    partition: Annotated[int, Path(ge=0)],
    request: Request,
    offset: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Page:
    """The orders of one partition from an offset on; at its end, waits a second for one more.

    After the topic has grown, start the service again: it then answers for the new partitions, too.
    """
    if partition >= (count := request.state.partitions):
        raise HTTPException(404, f"there is no partition {partition}: the topic has {count}")
    orders: list[Order] = []
    key = (TOPIC, partition)
    async with request.state.mq.consumer(assign=[key], start=offset) as consumer:
        with anyio.move_on_after(WAIT_SECONDS):
            async for record in consumer:
                orders.append(Order.model_validate_json(record.text()))
                if len(orders) == limit or not consumer.lag(*key):
                    break
        return Page(orders=orders, next_offset=consumer.position(*key) or offset)


if __name__ == "__main__":
    if sys.argv[1:]:
        os.environ[BOOTSTRAP] = sys.argv[1]
    uvicorn.run(app, port=int(sys.argv[2]) if sys.argv[2:] else PORT)
