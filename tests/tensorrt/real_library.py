"""The installed TensorRT for RTX, in this process: networks as its parser makes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from compiled_models import Preparation

from rowpack.engines.tensorrt.builder_child import import_first, map_file, parse
from rowpack.engines.tensorrt.flavour import TENSORRT_RTX
from rowpack.engines.tensorrt.plan_build import placed_initializers
from rowpack.graph.model import serialize


class ParsedNetwork:
    """The network of one graph; everything it needs is kept alive with it."""

    def __init__(self, preparation: Preparation, role: str) -> None:
        self.trt: Any = import_first(list(TENSORRT_RTX.modules))
        trt = self.trt
        self._logger = trt.Logger(trt.Logger.ERROR)
        self.builder: Any = trt.Builder(self._logger)
        self.network: Any = self.builder.create_network(0)
        self._parser = trt.OnnxParser(self.network, self._logger)
        self._weights = map_file_of(preparation)
        order = preparation.orders[role]
        assert parse(self._parser, serialize(order.model), self._weights, placed_initializers(order.model, 0))

    def layers(self) -> Iterator[Any]:
        """Yield every layer in order."""
        for index in range(self.network.num_layers):
            yield self.network.get_layer(index)


def map_file_of(preparation: Preparation) -> Any:
    """Map a preparation's weights."""
    with preparation.weights.path.open("rb") as file:
        return map_file(file.fileno())
