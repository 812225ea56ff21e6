"""The division of a decoder into stages."""

from engine_stub.model_executor.stages import Stage


def test_layers_are_shared_out_evenly_and_in_order() -> None:
    for num_layers in range(1, 9):
        for size in range(1, num_layers + 1):
            parts = [Stage(rank, size).layers(num_layers) for rank in range(size)]
            assert [layer for part in parts for layer in part] == [*range(num_layers)]
            lengths = [len(part) for part in parts]
            assert max(lengths) - min(lengths) <= 1
