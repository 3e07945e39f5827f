"""Where the other brokers are: from the metadata to the channels.

Follows the images and does nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from raftmq.broker.settings import BROKERS
from raftmq.model import Address

if TYPE_CHECKING:
    from raftmq.metadata.image import MetadataImage
    from raftmq.metadata.quorum import MetadataQuorum
    from raftmq.rpc.peers import Peers


async def follow_addresses(broker_id: int, quorum: MetadataQuorum, peers: Peers) -> NoReturn:
    """Until cancelled."""
    image = quorum.image
    peers.set_addresses(addresses_of_others(broker_id, image))
    while True:
        before, image = image, await quorum.wait_changed(image.version)
        if image.brokers is not before.brokers:
            peers.set_addresses(addresses_of_others(broker_id, image))


def addresses_of_others(broker_id: int, image: MetadataImage) -> dict[int, Address]:
    """Of every other broker that has told where brokers may talk to it."""
    return {
        broker.broker_id: Address(endpoint.host, endpoint.port)
        for broker in image.brokers.values()
        for endpoint in broker.endpoints
        if endpoint.listener == BROKERS and broker.broker_id != broker_id
    }
