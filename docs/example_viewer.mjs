// A viewer of the seqtop protocol in JavaScript, written from docs/protocol.md alone.
//
//     npm install zeromq @msgpack/msgpack
//     node docs/example_viewer.mjs tcp://127.0.0.1:5557
//
// It prints a line for each sequence after each step. `State` applies messages, without sockets.

import { pathToFileURL } from "node:url";
import { decode as unpack, decodeMulti, encode, ExtensionCodec } from "@msgpack/msgpack";

const VERSION = 3;
const [WAITING, RUNNING] = [0, 1];
const STATUS = ["WAITING", "RUNNING", "SWAPPED", "STOPPED", "LENGTH", "ABORTED", "IGNORED"];

// Packed arrays: the type of the extension is the width of the numbers, which are little-endian.
const READERS = {
  b: [1, (view, at) => view.getInt8(at)],
  h: [2, (view, at) => view.getInt16(at, true)],
  i: [4, (view, at) => view.getInt32(at, true)],
  q: [8, (view, at) => Number(view.getBigInt64(at, true))],
  f: [4, (view, at) => view.getFloat32(at, true)],
  d: [8, (view, at) => view.getFloat64(at, true)],
};

function numbers(code, bytes) {
  const [width, read] = READERS[code];
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  return Array.from({ length: bytes.byteLength / width }, (_, index) => read(view, index * width));
}

const extensionCodec = new ExtensionCodec();
for (const code of Object.keys(READERS)) {
  extensionCodec.register({
    type: code.charCodeAt(0),
    encode: () => null,
    decode: (bytes) => numbers(code, bytes),
  });
}

/** Returns a message with its packed arrays, and its bins of 8-byte integers, as arrays. */
function plain(value) {
  if (value instanceof Uint8Array) return numbers("q", value);
  if (Array.isArray(value)) return value.map(plain);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, plain(item)]));
}

/** Decodes a message. */
export const decode = (bytes) => plain(unpack(bytes, { extensionCodec }));

/** Decodes the messages of a file, which follow each other. */
export const decodeAll = (bytes) => [...decodeMulti(bytes, { extensionCodec })].map(plain);

/** What a viewer knows of an engine: the requests that have not ended, and their sequences. */
export class State {
  constructor() {
    Object.assign(this, { step: -1, time: 0, stopped: false, cachedBlocks: null });
    this.requests = new Map();
    this.sequences = new Map();
  }

  /** Applies a message of the live stream. An unknown one is skipped. */
  apply([name, ...fields]) {
    this[`on${name}`]?.(fields);
  }

  onEngineInfo([, , , , , , startTime]) {
    this.time = Math.max(this.time, startTime);
  }

  onHeartbeat([time]) {
    this.time = Math.max(this.time, time);
  }

  onEngineStopped([time]) {
    this.stopped = true;
    this.time = Math.max(this.time, time);
  }

  onRequestArrived(fields) {
    const [id, arrivalTime, seqIds, numPromptTokens, , , , , , metrics, engineStatus = ""] = fields;
    const first = { first_scheduled_time: null, first_token_time: null, time_in_queue: null };
    const times = { arrival_time: arrivalTime, last_token_time: arrivalTime, ...first };
    this.requests.set(id, { seqIds: [], numPromptTokens, metrics: metrics ?? times });
    for (const seqId of seqIds) this.addSequence(id, seqId).engineStatus = engineStatus;
    this.time = Math.max(this.time, arrivalTime);
  }

  onStreamingUpdate([id, time, numComputedTokens, numPromptTokens]) {
    const request = this.requests.get(id);
    request.numPromptTokens = numPromptTokens;
    for (const sequence of this.sequencesOf(request)) {
      Object.assign(sequence, { status: WAITING, numComputedTokens, engineStatus: "" });
      Object.assign(sequence, { outputTokenIds: [], text: "" });
    }
    this.time = Math.max(this.time, time);
  }

  onRequestFinished([id, time]) {
    for (const seqId of this.requests.get(id)?.seqIds ?? []) this.sequences.delete(seqId);
    this.requests.delete(id);
    this.time = Math.max(this.time, time);
  }

  onStep(fields) {
    const [number, startTime, time, execute, updates, stats, metrics = {}] = fields;
    const [, , , , , , , , , newlyCached = null, uncached = []] = fields;
    const ran = execute ? this.runGroups(execute[0]) : this.runChunks(updates);
    for (const id of ran) this.addTimes(this.requests.get(id).metrics, stats);
    for (const update of updates) this.update(update, time);
    if (newlyCached) {
      this.cachedBlocks ??= new Map();
      for (const block of uncached) this.cachedBlocks.delete(block);
      this.addCached(newlyCached);
    }
    for (const [id, present] of Object.entries(metrics)) {
      if (this.requests.has(id)) this.requests.get(id).metrics = present;
    }
    this.step = number;
    this.time = Math.max(this.time, time);
  }

  /** Runs the batch; returns the ids of its requests. */
  runGroups(groups) {
    const ran = new Set();
    for (const [form, ...fields] of groups) {
      const isFull = form === "SequenceGroupMetadata";
      const id = fields[isFull ? 0 : 1];
      if (!this.requests.has(id)) continue; // it has ended while this step was in flight
      ran.add(id);
      const chunk = fields[isFull ? 16 : 5] ?? 1;
      const tables = fields[isFull ? 4 : 2];
      for (const [key, data] of Object.entries(fields[isFull ? 2 : 0])) {
        const sequence = this.sequences.get(Number(key));
        const before = isFull ? (data._num_computed_tokens ?? 0) : data[2];
        if (isFull) sequence.numCachedTokens = data._num_cached_tokens ?? 0;
        if (isFull || tables[key]?.length) sequence.blockTable = tables[key] ?? [];
        this.run(sequence, before + chunk);
      }
    }
    return ran;
  }

  runChunks(updates) {
    const ran = new Set();
    for (const update of updates) {
      const [seqId, id, chunk] = [update[0], update[12], update[20]];
      if (!chunk || !this.requests.has(id)) continue;
      ran.add(id);
      this.run(this.sequences.get(seqId), chunk[1] + chunk[0]);
    }
    return ran;
  }

  run(sequence, numComputedTokens) {
    Object.assign(sequence, { status: RUNNING, numComputedTokens, engineStatus: "" });
  }

  update(fields, time) {
    const [seqId, newTokenIds = [], textDelta = "", newBlocks = [], , status] = fields;
    const [, , , , , , computed, cached, table, stopReason, , parentId, requestId] = fields;
    const [engineStatus = "", drafts, accepted, groupTables, isRemoved, external] =
      fields.slice(13);
    let sequence = this.sequences.get(seqId);
    if (!sequence) {
      if (!this.requests.has(requestId)) return;
      sequence = this.addSequence(requestId, seqId);
      const parent = this.sequences.get(parentId);
      if (parent) {
        Object.assign(sequence, { outputTokenIds: parent.outputTokenIds, text: parent.text });
      }
    }
    sequence.outputTokenIds = [...sequence.outputTokenIds, ...newTokenIds];
    sequence.text += textDelta;
    sequence.blockTable = table ?? [...sequence.blockTable, ...newBlocks];
    sequence.engineStatus = engineStatus;
    sequence.status = status ?? sequence.status;
    sequence.numComputedTokens = computed ?? sequence.numComputedTokens;
    sequence.numCachedTokens = cached ?? sequence.numCachedTokens;
    sequence.numExternalTokens = external ?? sequence.numExternalTokens;
    sequence.stopReason = stopReason ?? sequence.stopReason;
    sequence.groupBlockTables = groupTables ?? sequence.groupBlockTables;
    if (drafts != null) {
      sequence.numDraftTokens += drafts;
      sequence.numAcceptedTokens = (sequence.numAcceptedTokens ?? 0) + (accepted ?? 0);
    }
    const request = this.requests.get(sequence.requestId);
    if (newTokenIds.length) request.metrics.last_token_time = time;
    if (isRemoved) {
      this.sequences.delete(seqId);
      request.seqIds.splice(request.seqIds.indexOf(seqId), 1);
    }
  }

  addTimes(metrics, stats) {
    const times = { scheduler_time: 10, model_forward_time: 11, model_execute_time: 12 };
    for (const [name, index] of Object.entries(times)) {
      if (stats[index] !== null) metrics[name] = (metrics[name] ?? 0) + stats[index];
    }
  }

  addCached(runs) {
    for (const [requestId, seqId, position, blocks] of runs) {
      blocks.forEach((block, index) => {
        this.cachedBlocks.set(block, [requestId, seqId, position + index]);
      });
    }
  }

  addSequence(requestId, seqId) {
    const sequence = {
      requestId, status: WAITING, numComputedTokens: 0, numCachedTokens: 0, numExternalTokens: 0,
      blockTable: [], groupBlockTables: [], engineStatus: "", stopReason: null,
      numDraftTokens: null, numAcceptedTokens: null, outputTokenIds: [], text: "",
    };
    this.sequences.set(seqId, sequence);
    this.requests.get(requestId).seqIds.push(seqId);
    return sequence;
  }

  sequencesOf(request) {
    return request.seqIds.map((seqId) => this.sequences.get(seqId));
  }

  /** Begins with a `Snapshot`; the parts follow by `add`. */
  load([, time, step, , requests, cachedBlocks = null, info]) {
    if (info) this.onEngineInfo(info.slice(1));
    Object.assign(this, { step, time: Math.max(this.time, time) });
    this.cachedBlocks = cachedBlocks && new Map();
    this.add(requests, cachedBlocks ?? []);
  }

  /** Adds the requests and cached blocks of a snapshot, or of a part. */
  add(requests = [], cachedBlocks = []) {
    for (const [arrival, sequences, history] of requests) {
      if (history?.[14] != null) continue; // it has finished
      this.onRequestArrived(arrival.slice(1));
      for (const [update, outputTokenIds = [], , text = ""] of sequences) {
        const sequence = this.sequences.get(update[0]);
        const metrics = this.requests.get(arrival[1]).metrics;
        this.update(update, metrics.last_token_time);
        Object.assign(sequence, { outputTokenIds, text });
      }
    }
    if (this.cachedBlocks) this.addCached(cachedBlocks);
  }
}

/** Follows an engine, and calls `onChange(state, message)` after each message and snapshot. */
export async function follow(endpoint, onChange) {
  const { Subscriber, Dealer } = await import("zeromq");
  const live = new Subscriber();
  const requests = new Dealer({ linger: 0 });
  live.subscribe();
  live.connect(endpoint);
  requests.connect(snapshotEndpoint(endpoint));
  let state = null; // null while there is none: at first and after a gap
  let incarnation, next; // of the state: the number of the next message
  let pending = [];
  let parts = null; // a snapshot whose parts have not all come

  const join = () => {
    [state, parts] = [null, null];
    return requests.send(encode(["SnapshotRequest", true]));
  };
  const receive = async (topic, number, message) => {
    if (topic !== incarnation || number > next) {
      pending = [[topic, number, message]];
      await join();
    } else if (number === next) {
      state.apply(message);
      next += 1;
      onChange(state, message);
      if (state.stopped) live.close(); // ends the loop below
    }
  };
  const readReplies = async () => {
    for await (const [topic, number, payload] of requests) {
      const message = decode(payload);
      if (state) continue; // a late reply
      if (message[0] === "Snapshot") {
        parts = new State();
        parts.load(message);
        if (message[8]) continue; // has_parts
      } else if (message[0] === "SnapshotPart" && parts) {
        parts.add(message[3], message[4]);
        if (!message[2]) continue; // is_last
      } else {
        throw new Error(`the engine replied ${message}`);
      }
      [state, parts, incarnation] = [parts, null, String(topic)];
      next = Number(number.readBigUInt64BE());
      onChange(state, message);
      const stored = pending;
      pending = [];
      for (const frames of stored) {
        if (!state) pending.push(frames);
        else if (frames[0] === incarnation) await receive(...frames);
      }
    }
  };
  const replies = readReplies();
  let isJoined = false;
  for await (const [topic, number, payload] of live) {
    if (!String(topic).startsWith(`seqtop/${VERSION}/`)) {
      throw new Error(`not version ${VERSION} of the seqtop protocol: ${topic}`);
    }
    if (!isJoined) await join();
    isJoined = true;
    if (!payload) continue; // a welcome message
    const frames = [String(topic), Number(number.readBigUInt64BE()), decode(payload)];
    if (state) await receive(...frames);
    else pending.push(frames);
  }
  requests.close();
  await replies.catch(() => {});
}

function snapshotEndpoint(endpoint) {
  const [, host, port] = endpoint.match(/^(tcp:.*:)(\d+)$/) ?? [];
  return host ? `${host}${Number(port) + 1}` : `${endpoint}.snapshot`;
}

function print(state, [name]) {
  if (name !== "Step") return;
  console.log(`step ${state.step}`);
  for (const [seqId, { requestId, status, numComputedTokens, text }] of state.sequences) {
    console.log(`  ${seqId} ${requestId} ${STATUS[status]} ${numComputedTokens} ${text}`);
  }
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? "").href) {
  await follow(process.argv[2] ?? "tcp://127.0.0.1:5557", print);
}
