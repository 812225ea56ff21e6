"""A toy engine that publishes to seqtop with only pyzmq and msgpack (docs/protocol.md).

    python docs/example_engine.py        # then, in another terminal: seqtop attach

It "generates" one sentence, one character per token, for two requests at a time. A real engine can
use `Stream` unchanged, and sends what `Engine` sends when its own scheduler does the same.
"""

import secrets
import sys
import time

import msgpack
import zmq

WAITING, RUNNING, LENGTH_CAPPED = 0, 1, 4  # of vLLM V0's SequenceStatus
BLOCK_SIZE, NUM_BLOCKS, MAX_SEQS, MAX_TOKENS, CHUNK = 4, 48, 2, 16, 8
ANSWER = "and they lived happily ever after."


class Stream:
    """The two sockets of an engine: the live stream and the requests of viewers."""

    def __init__(self, endpoint: str) -> None:
        self.incarnation, self.number = secrets.token_hex(8), 0
        self.topic = f"seqtop/2/{self.incarnation}".encode()
        self.context = zmq.Context()
        self.live, self.router = self.context.socket(zmq.XPUB), self.context.socket(zmq.ROUTER)
        self.live.setsockopt(zmq.XPUB_WELCOME_MSG, self.topic)  # the welcome message
        self.live.bind(endpoint)
        host, _, port = endpoint.rpartition(":")
        tcp = endpoint.startswith("tcp:")
        self.router.bind(f"{host}:{int(port) + 1}" if tcp else f"{endpoint}.snapshot")

    def send(self, *event: object) -> None:
        """Publishes an event."""
        frames = [self.topic, self.number.to_bytes(8, "big"), msgpack.packb(event)]
        self.live.send_multipart(frames)
        self.number += 1

    def answer(self, state: dict) -> None:
        """Sends a snapshot to each viewer that has requested one."""
        while self.live.poll(0):
            self.live.recv()  # subscriptions have to be read, but are not used
        while self.router.poll(0):
            identity, _request = self.router.recv_multipart()
            reply = ("Snapshot", 2, self.incarnation, self.number - 1, state)
            self.router.send_multipart([identity, msgpack.packb(reply)])


class Engine:
    """The engine: a queue, a pool of blocks and the state that snapshots are made of."""

    def __init__(self, stream: Stream) -> None:
        self.stream, self.waiting, self.running = stream, [], []
        self.free = list(range(NUM_BLOCKS))
        names = ("example", stream.incarnation, "example 1", "a sentence", "none", "cpu")
        limits = (BLOCK_SIZE, NUM_BLOCKS, None, MAX_SEQS, MAX_TOKENS, 512, True, False)
        info = ("EngineInfo", 2, *names, time.time(), *limits, "recompute")
        self.state = {"info": info, "step": -1, "requests": {}, "sequences": {}}
        stream.send(*info)

    def add(self, number: int, prompt: str) -> None:
        """Adds a request to the waiting queue."""
        name, now, ids = f"req-{number}", time.time(), [ord(letter) for letter in prompt]
        common = {"request_id": name, "num_prompt_tokens": len(ids)}
        unknown = dict.fromkeys(("first_scheduled_time", "first_token_time", "time_in_queue"))
        metrics = {"arrival_time": now, "last_token_time": now, **unknown}
        span = {"kind": "queued", "start": now, "end": None}
        texts = {"prompt": prompt, "prompt_token_ids": ids, "spans": [span]}
        self.state["requests"][name] = {"metrics": metrics, "seq_ids": [number], **common, **texts}
        empty = {"num_computed_tokens": 0, "output_token_ids": [], "text": "", "block_table": []}
        self.state["sequences"][number] = {"seq_id": number, "status": WAITING, **common, **empty}
        self.waiting.append(number)
        self.stream.send("RequestArrived", name, now, [number], len(ids), prompt, ids)

    def step(self) -> None:
        """Runs one iteration and publishes it."""
        start, batch, updates, changed, tokens = time.time(), [], [], {}, [0, 0]
        while self.waiting and len(self.running) < MAX_SEQS:
            self.running.append(self.waiting.pop(0))
        sampling, scheduled = [], time.time()
        for number in self.running:
            seq = self.state["sequences"][number]
            metrics = self.state["requests"][seq["request_id"]]["metrics"]
            if seq["status"] == WAITING:
                waited = start - metrics["arrival_time"]
                metrics |= {"first_scheduled_time": start, "time_in_queue": waited}
                changed[seq["request_id"]] = metrics
            left = seq["num_prompt_tokens"] + len(seq["text"]) - seq["num_computed_tokens"]
            is_prompt, chunk, samples = not seq["text"], min(left, CHUNK), left <= CHUNK
            tokens[0 if is_prompt else 1] += chunk
            seq["num_computed_tokens"] += chunk
            needed = -(-seq["num_computed_tokens"] // BLOCK_SIZE) - len(seq["block_table"])
            blocks = [self.free.pop() for _ in range(needed)]
            letter = ANSWER[len(seq["text"])] if samples else ""
            sampled = [ord(letter)] if samples else []
            seq["block_table"], seq["text"] = seq["block_table"] + blocks, seq["text"] + letter
            seq["output_token_ids"] += sampled
            sampling += [(seq["request_id"], metrics)] if samples else []
            ended = seq["text"] == ANSWER
            seq["status"] = LENGTH_CAPPED if ended else RUNNING
            new = (sampled, [], letter, blocks, [] if ended else None)  # None: append the blocks
            updates.append((number, seq["status"], seq["num_computed_tokens"], 0, *new))
            delta = ("SequenceGroupMetadataDelta", {}, seq["request_id"], {})
            batch.append((*delta, is_prompt, samples, chunk))
        end = time.time()
        for name, metrics in sampling:
            metrics["last_token_time"] = end  # viewers derive this, but not first_token_time
            if metrics["first_token_time"] is None:
                metrics["first_token_time"], changed[name] = end, metrics
        ended = [each for each in self.running if self.state["sequences"][each]["status"] > RUNNING]
        self.running = [each for each in self.running if each not in ended]
        finished = [self.state["sequences"].pop(number) for number in ended]
        self.free += [block for seq in finished for block in seq["block_table"]]
        counts, free = (len(self.running), len(self.waiting)), len(self.free)
        times = (scheduled - start, None, end - scheduled)
        stats = (*counts, NUM_BLOCKS - free, free, 0, *tokens, 0, 0, 0, *times)
        status = (len(self.waiting), len(self.running), 0, 0, 0, 0, 0)
        self.state |= {"step": self.state["step"] + 1, "stats": stats, "num_by_status": status}
        self.stream.send("Step", self.state["step"], start, end, (batch,), updates, stats, changed)
        for seq in finished:
            metrics = self.state["requests"].pop(seq["request_id"])["metrics"]
            metrics["finished_time"], length = end, len(seq["text"])
            end_of = ("RequestFinished", seq["request_id"], end, LENGTH_CAPPED)
            self.stream.send(*end_of, metrics, [length])


def main(endpoint: str = "tcp://127.0.0.1:5557", num_requests: str = "20") -> None:
    """Runs the engine until all requests are finished."""
    stream = Stream(endpoint)
    engine, number = Engine(stream), 0
    while number < int(num_requests) or engine.running:
        if number < int(num_requests) and len(engine.waiting) < 3:
            engine.add(number, f"Once upon a time, for the {number + 1}th time,")
            number += 1
        engine.step()
        stream.answer(engine.state)
        time.sleep(0.02)  # an idle engine sends ("Heartbeat", time, step) every second
    stream.send("EngineStopped", time.time(), "all requests are finished")
    stream.context.destroy(linger=500)


if __name__ == "__main__":
    main(*sys.argv[1:])
