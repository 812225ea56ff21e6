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
        self.topic = f"seqtop/3/{self.incarnation}".encode()
        self.context = zmq.Context()
        self.live, self.router = self.context.socket(zmq.XPUB), self.context.socket(zmq.ROUTER)
        self.live.setsockopt(zmq.XPUB_WELCOME_MSG, self.topic)  # the welcome message
        self.live.bind(endpoint)
        host, _, port = endpoint.rpartition(":")
        tcp = endpoint.startswith("tcp:")
        self.router.bind(f"{host}:{int(port) + 1}" if tcp else f"{endpoint}.snapshot")

    def frames(self, message: object) -> list[bytes]:
        """Returns the frames of the next message, or of a reply before it."""
        return [self.topic, self.number.to_bytes(8, "big"), msgpack.packb(message)]

    def send(self, *event: object) -> None:
        """Publishes an event."""
        self.live.send_multipart(self.frames(event))
        self.number += 1

    def answer(self, snapshot: tuple) -> None:
        """Sends a snapshot to each viewer that has requested one."""
        while self.live.poll(0):
            self.live.recv()  # subscriptions have to be read, but are not used
        while self.router.poll(0):
            identity, _request = self.router.recv_multipart()
            self.router.send_multipart([identity, *self.frames(snapshot)])


class Engine:
    """The engine: a queue, a pool of blocks, and its unfinished requests."""

    def __init__(self, stream: Stream) -> None:
        self.stream, self.waiting, self.running = stream, [], []
        self.free, self.requests, self.number, self.stats = list(range(NUM_BLOCKS)), {}, -1, None
        names = ("example", stream.incarnation, "example 1", "a sentence", "none", "cpu")
        limits = (BLOCK_SIZE, NUM_BLOCKS, None, MAX_SEQS, MAX_TOKENS, 512, True, False)
        self.info = ("EngineInfo", *names, time.time(), *limits, "recompute")
        stream.send(*self.info)

    def add(self, number: int, prompt: str) -> None:
        """Adds a request to the waiting queue."""
        name, now, ids = f"req-{number}", time.time(), [ord(letter) for letter in prompt]
        unknown = dict.fromkeys(("first_scheduled_time", "first_token_time", "time_in_queue"))
        arrival = ("RequestArrived", name, now, [number], len(ids), prompt, ids)
        self.requests[number] = {
            "arrival": arrival, "name": name, "status": WAITING, "length": len(ids), "text": "",
            "computed": 0, "table": [],
            "metrics": {"arrival_time": now, "last_token_time": now, **unknown},
        }  # fmt: skip
        self.waiting.append(number)
        self.stream.send(*arrival)

    def snapshot(self) -> tuple:
        """Returns everything about the unfinished requests, for viewers that join late."""
        requests = []
        for number, seq in self.requests.items():
            state = (seq["status"], seq["computed"], 0, seq["table"])
            output = [ord(letter) for letter in seq["text"]], [], seq["text"]
            arrival = (*seq["arrival"], None, None, 0, seq["metrics"])  # with present metrics
            requests.append((arrival, [((number, [], "", [], [], *state), *output)]))
        return ("Snapshot", time.time(), self.number, self.stats, requests, None, self.info)

    def step(self) -> None:
        """Runs one iteration and publishes it."""
        start, batch, updates, changed, tokens = time.time(), [], [], {}, [0, 0]
        while self.waiting and len(self.running) < MAX_SEQS:
            self.running.append(self.waiting.pop(0))
        sampling, scheduled = [], time.time()
        for number in self.running:
            seq = self.requests[number]
            metrics = seq["metrics"]
            if seq["status"] == WAITING:
                waited = start - metrics["arrival_time"]
                metrics |= {"first_scheduled_time": start, "time_in_queue": waited}
                changed[seq["name"]] = metrics
            left = seq["length"] + len(seq["text"]) - seq["computed"]
            is_prompt, chunk, samples = not seq["text"], min(left, CHUNK), left <= CHUNK
            tokens[0 if is_prompt else 1] += chunk
            data = {number: ([], 0.0, seq["computed"], 1 if is_prompt else 2)}  # before the step
            delta = ("SequenceGroupMetadataDelta", data, seq["name"], {})
            batch.append((*delta, is_prompt, samples, chunk))
            seq["computed"] += chunk
            needed = -(-seq["computed"] // BLOCK_SIZE) - len(seq["table"])
            blocks = [self.free.pop() for _ in range(needed)]
            letter = ANSWER[len(seq["text"])] if samples else ""
            seq["table"], seq["text"] = seq["table"] + blocks, seq["text"] + letter
            sampling += [(seq["name"], metrics)] if samples else []
            seq["status"] = LENGTH_CAPPED if seq["text"] == ANSWER else RUNNING
            # The batch says that it runs and how far it is: only an end is to be added.
            end = (LENGTH_CAPPED, None, None, []) if seq["status"] > RUNNING else ()
            updates.append((number, [ord(letter)] if letter else [], letter, blocks, [], *end))
        end_time = time.time()
        spent = {"scheduler_time": scheduled - start, "model_execute_time": end_time - scheduled}
        for number in self.running:  # viewers add these times, too
            metrics = self.requests[number]["metrics"]
            metrics |= {key: metrics.get(key, 0.0) + more for key, more in spent.items()}
        for name, metrics in sampling:
            metrics["last_token_time"] = end_time  # viewers derive this, but not first_token_time
            if metrics["first_token_time"] is None:
                metrics["first_token_time"], changed[name] = end_time, metrics
        ended = [number for number in self.running if self.requests[number]["status"] > RUNNING]
        self.running = [number for number in self.running if number not in ended]
        finished = [self.requests.pop(number) for number in ended]
        self.free += [block for seq in finished for block in seq["table"]]
        counts, free = (len(self.running), len(self.waiting)), len(self.free)
        times = (spent["scheduler_time"], None, spent["model_execute_time"])
        self.stats = (*counts, NUM_BLOCKS - free, free, 0, *tokens, 0, 0, 0, *times)
        self.number += 1
        what = ((batch,), updates, self.stats, changed)
        self.stream.send("Step", self.number, start, end_time, *what)
        for seq in finished:
            seq["metrics"]["finished_time"], length = end_time, len(seq["text"])
            end_of = ("RequestFinished", seq["name"], end_time, LENGTH_CAPPED)
            self.stream.send(*end_of, seq["metrics"], [length])


def main(endpoint: str = "tcp://127.0.0.1:5557", num_requests: str = "20") -> None:
    """Runs the engine until all requests are finished."""
    stream = Stream(endpoint)
    engine, number = Engine(stream), 0
    while number < int(num_requests) or engine.running:
        if number < int(num_requests) and len(engine.waiting) < 3:
            engine.add(number, f"Once upon a time, for the {number + 1}th time,")
            number += 1
        engine.step()
        stream.answer(engine.snapshot())
        time.sleep(0.02)  # an idle engine sends ("Heartbeat", time, step) every second
    stream.send("EngineStopped", time.time(), "all requests are finished")
    stream.context.destroy(linger=500)


if __name__ == "__main__":
    main(*sys.argv[1:])
