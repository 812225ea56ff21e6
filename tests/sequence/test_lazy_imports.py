"""The data model and the codec load nothing heavy, until a tensor arrives."""

import subprocess
import sys

HEAVY = ("torch", "numpy", "transformers")


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_encoding_and_decoding_without_tensors_loads_nothing_heavy() -> None:
    code = f"""
import sys
from seqtop.sequence import *
from seqtop.wire import decode, encode
seq = Sequence(0, token_inputs([1, 2, 3]), block_size=16)
group = SequenceGroup("r", [seq], 0.0, SamplingParams())
full = SequenceGroupMetadata("r", True, {{0: seq.data}}, group.sampling_params, {{0: [1]}},
                             multi_modal_data=group.multi_modal_data)
request = ExecuteModelRequest([full])
assert encode(decode(encode(request), ExecuteModelRequest)) == encode(request)
it = IntermediateTensors({{}})
assert it == it and not len(it)
print([m for m in {HEAVY} if m in sys.modules])
"""
    assert run(code) == "[]"


def test_a_tensor_that_arrives_loads_torch() -> None:
    # The bytes are spelled out here because whoever encodes a tensor has torch already.
    payload = b"\x93\xa5int16\x91\x01\xc4\x02\x07\x00"
    data = b"\x81\xa7tensors\x81\xa1a\xc7" + bytes([len(payload)]) + b"T" + payload
    code = f"""
import sys
from seqtop.sequence import IntermediateTensors
from seqtop.wire import decode
before = "torch" in sys.modules
tensor = decode({data!r}, IntermediateTensors)["a"]
print(before, "torch" in sys.modules, tensor.tolist(), tensor.dtype)
"""
    assert run(code) == "False True [7] torch.int16"
