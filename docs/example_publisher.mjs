// A toy engine that publishes to seqtop from JavaScript, written from docs/protocol.md alone.
//
//     npm install zeromq @msgpack/msgpack
//     node docs/example_publisher.mjs       # then, in another terminal: seqtop attach
//
// It "generates" one sentence, one character per token, for two requests at a time, and preempts
// one of them now and then. It has no `SequenceGroupMetadata`, so its updates have chunks.

import { randomBytes } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { encode } from "@msgpack/msgpack";
import { Router, XPublisher } from "zeromq";

const [WAITING, RUNNING, LENGTH_CAPPED] = [0, 1, 4]; // SequenceStatus
const [BLOCK_SIZE, NUM_BLOCKS, MAX_SEQS, MAX_TOKENS, CHUNK] = [4, 48, 2, 16, 8];
const ANSWER = "and they lived happily ever after.";
const now = () => Date.now() / 1000;
const codes = (text) => [...text].map((letter) => letter.codePointAt(0));

/** The two sockets of an engine: the live stream, and the requests of viewers. */
class Stream {
  incarnation = randomBytes(8).toString("hex");
  number = 0;

  async bind(endpoint) {
    const topic = `seqtop/3/${this.incarnation}`;
    this.topic = topic;
    this.live = new XPublisher({ welcomeMessage: topic });
    this.router = new Router();
    await this.live.bind(endpoint);
    const [, host, port] = endpoint.match(/^(tcp:.*:)(\d+)$/) ?? [];
    await this.router.bind(host ? `${host}${Number(port) + 1}` : `${endpoint}.snapshot`);
    this.subscriptions = this.readSubscriptions();
  }

  async readSubscriptions() {
    for await (const _ of this.live); // they have to be read, but are not used
  }

  /** Returns the frames of the next message, or of a reply before it. */
  frames(message) {
    const number = Buffer.alloc(8);
    number.writeBigUInt64BE(BigInt(this.number));
    return [this.topic, number, encode(message)];
  }

  async send(...event) {
    const frames = this.frames(event);
    this.number += 1;
    await this.live.send(frames);
  }

  /** Answers the requests of viewers, each with the snapshot of that moment. */
  async answer(snapshot) {
    for await (const [viewer, _request] of this.router) {
      await this.router.send([viewer, ...this.frames(snapshot())]);
    }
  }

  async close() {
    await sleep(200); // until all is sent
    this.live.close();
    this.router.close();
  }
}

/** The engine: a queue, a pool of blocks, and its unfinished requests. */
class Engine {
  constructor(stream) {
    Object.assign(this, { stream, waiting: [], running: [], requests: new Map() });
    Object.assign(this, { number: -1, stats: null, numPreemptions: 0 });
    this.free = Array.from({ length: NUM_BLOCKS }, (_, block) => block);
    const names = ["example-js", stream.incarnation, "example 1", "a sentence", "none", "cpu"];
    const limits = [BLOCK_SIZE, NUM_BLOCKS, null, MAX_SEQS, MAX_TOKENS, 512, true, false];
    this.info = ["EngineInfo", ...names, now(), ...limits, "recompute"];
  }

  async add(seqId, prompt) {
    const [name, time, ids] = [`req-${seqId}`, now(), codes(prompt)];
    const arrival = ["RequestArrived", name, time, [seqId], ids.length, prompt, ids];
    const unknown = { first_scheduled_time: null, first_token_time: null, time_in_queue: null };
    const metrics = { arrival_time: time, last_token_time: time, ...unknown };
    const state = { status: WAITING, computed: 0, table: [], text: "", length: ids.length };
    this.requests.set(seqId, { seqId, name, arrival, metrics, ...state });
    this.waiting.push(seqId);
    await this.stream.send(...arrival);
  }

  /** Returns everything about the unfinished requests, for viewers that join late. */
  snapshot() {
    const requests = [...this.requests.values()].map((request) => {
      const arrival = [...request.arrival, null, null, 0, request.metrics];
      const state = [request.status, request.computed, 0, request.table];
      const update = [request.seqId, [], "", [], [], ...state];
      return [arrival, [[update, codes(request.text), [], request.text]]];
    });
    return ["Snapshot", now(), this.number, this.stats, requests, null, this.info];
  }

  async step() {
    const start = now();
    const [updates, changed, preemptions, sampled, tokens] = [[], {}, [], [], [0, 0]];
    this.number += 1;
    if (this.number % 25 === 24 && this.running.length === MAX_SEQS) {
      const request = this.requests.get(this.running.pop());
      preemptions.push([request.name, "recompute", request.computed]);
      updates.push([request.seqId, [], "", [], [], WAITING, 0, null, []]);
      this.release(request);
      Object.assign(request, { status: WAITING, computed: 0, table: [] });
      this.waiting.unshift(request.seqId);
      this.numPreemptions += 1;
    } else {
      while (this.waiting.length && this.running.length < MAX_SEQS) {
        this.running.push(this.waiting.shift());
      }
    }
    for (const request of this.running.map((seqId) => this.requests.get(seqId))) {
      const { metrics, name } = request;
      if (metrics.first_scheduled_time === null) {
        metrics.first_scheduled_time = start;
        metrics.time_in_queue = start - metrics.arrival_time;
        changed[name] = metrics;
      }
      const left = request.length + request.text.length - request.computed;
      const [size, isPrompt] = [Math.min(left, CHUNK), left > 1 || request.text === ""];
      const chunk = [size, request.computed, isPrompt]; // before the step
      tokens[isPrompt ? 0 : 1] += size;
      request.computed += size;
      const blocks = [];
      while ((request.table.length + blocks.length) * BLOCK_SIZE < request.computed) {
        blocks.push(this.free.pop());
      }
      request.table = [...request.table, ...blocks];
      const letter = left <= CHUNK ? ANSWER[request.text.length] : "";
      request.text += letter;
      if (letter) sampled.push(request);
      request.status = request.text === ANSWER ? LENGTH_CAPPED : RUNNING;
      // The chunk says that it runs and how far it is: only an end is to be added.
      const isEnd = request.status === LENGTH_CAPPED;
      const end = isEnd ? [LENGTH_CAPPED, null, null, []] : [null, null, null, null];
      const rest = [null, null, null, name, "", null, null, null, false, null, null, chunk];
      updates.push([request.seqId, codes(letter), letter, blocks, [], ...end, ...rest]);
    }
    const time = now();
    for (const { name, metrics } of sampled) {
      metrics.last_token_time = time; // viewers derive this, but not first_token_time
      if (metrics.first_token_time === null) {
        metrics.first_token_time = time;
        changed[name] = metrics;
      }
    }
    const ended = [...this.requests.values()].filter(({ status }) => status === LENGTH_CAPPED);
    for (const request of ended) {
      this.running.splice(this.running.indexOf(request.seqId), 1);
      this.requests.delete(request.seqId);
      this.release(request);
    }
    const counts = [this.running.length, this.waiting.length];
    const blocks = [NUM_BLOCKS - this.free.length, this.free.length, 0];
    this.stats = [...counts, ...blocks, ...tokens, 0, 0, this.numPreemptions, null, null, null];
    const step = [this.number, start, time, null, updates, this.stats, changed, preemptions];
    // A snapshot has all messages before it. So nothing is awaited between the change of the state
    // and the numbers of the messages: `send` takes its number at once.
    const sent = [this.stream.send("Step", ...step)];
    for (const { name, metrics, text } of ended) {
      metrics.finished_time = time;
      const end = [name, time, LENGTH_CAPPED, metrics, [text.length]];
      sent.push(this.stream.send("RequestFinished", ...end));
    }
    await Promise.all(sent);
  }

  release(request) {
    this.free.push(...request.table);
  }
}

const [endpoint = "tcp://127.0.0.1:5557", numRequests = "20"] = process.argv.slice(2);
const stream = new Stream();
await stream.bind(endpoint);
const engine = new Engine(stream);
await stream.send(...engine.info);
const answering = stream.answer(() => engine.snapshot());
for (let number = 0; number < Number(numRequests) || engine.requests.size; ) {
  if (number < Number(numRequests) && engine.waiting.length < 3) {
    await engine.add(number, `Once upon a time, for the ${number + 1}th time,`);
    number += 1;
  }
  await engine.step();
  await sleep(20); // an idle engine sends ["Heartbeat", time, step] every second
}
await stream.send("EngineStopped", now(), "all requests are finished");
await stream.close();
await answering;
