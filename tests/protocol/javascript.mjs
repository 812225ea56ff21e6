// What the tests run in Node: `node javascript.mjs decode FOLDER`, `states STREAM [SNAPSHOT]`,
// `follow ENDPOINT` or `validate SCHEMA FOLDER`. It prints a line of JSON for each result.

import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { decode, decodeAll, follow, State } from "./example_viewer.mjs";

const METRICS = `arrival_time last_token_time first_scheduled_time first_token_time time_in_queue
  finished_time scheduler_time model_forward_time model_execute_time spec_token_acceptance_counts`;

const print = (value) => console.log(JSON.stringify(value));
const snake = (name) => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
const object = (map, convert) =>
  Object.fromEntries([...map].map(([key, value]) => [key, convert(value)]));

/** Returns what a viewer knows in the form of docs/golden/streams. */
function known(state) {
  const metrics = (present) =>
    Object.fromEntries(METRICS.split(/\s+/).map((name) => [name, present[name] ?? null]));
  return {
    step: state.step,
    time: state.time,
    stopped: state.stopped,
    requests: object(state.requests, (request) => ({
      seq_ids: request.seqIds,
      num_prompt_tokens: request.numPromptTokens,
      metrics: metrics(request.metrics),
    })),
    sequences: object(state.sequences, (sequence) =>
      Object.fromEntries(Object.entries(sequence).map(([name, value]) => [snake(name), value]))),
    cached_blocks: state.cachedBlocks && object(state.cachedBlocks, (entry) => entry),
  };
}

function* messages(folder) {
  for (const name of readdirSync(folder).filter((name) => name.endsWith(".msgpack"))) {
    yield [name.replace(".msgpack", ""), decode(readFileSync(join(folder, name)))];
  }
}

const commands = {
  decode(folder) {
    for (const entry of messages(folder)) print(entry);
  },
  states(stream, snapshot) {
    const state = new State();
    if (snapshot) {
      state.load(decode(readFileSync(snapshot)));
      print([null, known(state)]);
    }
    for (const message of decodeAll(readFileSync(stream))) {
      state.apply(message);
      print([message, known(state)]);
    }
  },
  async follow(endpoint) {
    await follow(endpoint, (state) => print(known(state)));
  },
  async validate(schemaPath, folder) {
    const { default: Ajv } = await import("ajv/dist/2020.js");
    const ajv = new Ajv({ strict: false, allErrors: false });
    const validate = ajv.compile(JSON.parse(readFileSync(schemaPath, "utf8")));
    for (const [name, message] of messages(folder)) {
      const [tag, ...fields] = message;
      const broken = fields.length ? [tag, {}, ...fields.slice(1)] : [{}];
      print([name, validate(message), validate(broken)]);
    }
  },
};

const [command, ...values] = process.argv.slice(2);
await commands[command](...values);
