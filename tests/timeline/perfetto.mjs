// Opens a timeline in Perfetto's own trace processor, and fails where it does not find there what
// the file has: every piece on a track of its name, and nothing to complain of.
//
//   node perfetto.mjs DIRECTORY TIMELINE
//
// DIRECTORY has `engine_bundle.js` and `trace_processor.wasm` of Perfetto's page. The first is
// made for a worker of a browser, and is given what it takes from one.

import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import vm from 'node:vm';

const [directory, file] = process.argv.slice(2);
const trace = fs.readFileSync(file);

// Fields and values of `protos/perfetto/trace_processor/trace_processor.proto`.
const MESSAGE = 1;
const SEQUENCE = 1, REQUEST = 2, FATAL_ERROR = 5, APPEND_DATA = 101, QUERY = 103, QUERY_RESULT = 203;
const APPEND = 1, FINALIZE = 2, QUERY_STREAMING = 3;
const SQL = 1;
const ERROR = 2, BATCH = 3;
const CELLS = 1, INTEGERS = 2, STRINGS = 5;
const CELL_INTEGER = 2, CELL_STRING = 4;

function varint(number) {
  const bytes = [];
  for (; number > 127; number = Math.floor(number / 128)) bytes.push((number % 128) | 128);
  return Buffer.from([...bytes, number]);
}

const integer = (field, number) => Buffer.concat([varint(field * 8), varint(number)]);
const bytes = (field, content) =>
  Buffer.concat([varint(field * 8 + 2), varint(content.length), content]);

// Reads numbers of a message one by one.
class Reader {
  constructor(message) {
    this.message = message;
    this.at = 0;
  }
  get left() {
    return this.message.length - this.at;
  }
  varint() {
    for (let value = 0, scale = 1; ; scale *= 128) {
      const byte = this.message[this.at++];
      value += (byte & 127) * scale;
      if (byte < 128) return value;
    }
  }
  take(length) {
    this.at += length;
    return this.message.subarray(this.at - length, this.at);
  }
}

// What a message has of a field: numbers, or bytes.
function all(message, wanted) {
  const found = [];
  for (const reader = new Reader(message); reader.left > 0; ) {
    const key = reader.varint();
    const read = { 0: () => reader.varint(), 1: () => reader.take(8), 5: () => reader.take(4) };
    const value = (read[key & 7] ?? (() => reader.take(reader.varint())))();
    if (key >>> 3 === wanted) found.push(value);
  }
  return found;
}

function numbers(packed) {
  const found = [];
  for (const reader = new Reader(packed); reader.left > 0; ) found.push(reader.varint());
  return found;
}

// The worker, and a port to it.
const answers = [];
const port = { postMessage: (data) => answers.push(Buffer.from(data)) };
const location = { href: 'file:///' };
const worker = { location };
class XMLHttpRequest {
  open(_, name) {
    this.path = path.join(directory, path.basename(name));
  }
  send() {
    this.response = new Uint8Array(fs.readFileSync(this.path)).buffer;
  }
}
const context = vm.createContext({
  self: worker,
  location,
  importScripts() {},
  WorkerGlobalScope: class {},
  XMLHttpRequest,
  console: { log() {}, warn() {}, error: console.error },
  // Errors that WebAssembly throws are recognised by these.
  ...{ Error, TypeError, WebAssembly, Promise, Uint8Array, URL },
  ...{ TextDecoder, TextEncoder, setTimeout, performance, crypto },
});
vm.runInContext(fs.readFileSync(path.join(directory, 'engine_bundle.js'), 'utf8'), context);
worker.onmessage({ data: port });
// What it has begun by now ends first.
await new Promise((resolve) => setTimeout(resolve));

let sequence = 0;
function ask(request, ...content) {
  sequence += 1;
  const message = [integer(SEQUENCE, sequence), integer(REQUEST, request), ...content];
  port.onmessage({ data: new Uint8Array(bytes(MESSAGE, Buffer.concat(message))) });
  const found = answers.splice(0).flatMap((answer) => all(answer, MESSAGE));
  found.flatMap((answer) => all(answer, FATAL_ERROR)).forEach((error) => assert.fail(`${error}`));
  return found;
}

// Rows of so many columns.
function query(sql, columns) {
  const found = ask(QUERY_STREAMING, bytes(QUERY, bytes(SQL, Buffer.from(sql))));
  const results = found.flatMap((answer) => all(answer, QUERY_RESULT));
  results.flatMap((result) => all(result, ERROR)).forEach((error) => assert.fail(`${error}`));
  const values = results.flatMap((result) => all(result, BATCH)).flatMap((batch) => {
    const integers = all(batch, INTEGERS).flatMap(numbers);
    const strings = all(batch, STRINGS).flatMap((text) => `${text}`.split('\0'));
    const value = { [CELL_INTEGER]: () => integers.shift(), [CELL_STRING]: () => strings.shift() };
    return all(batch, CELLS).flatMap(numbers).map((kind) => value[kind]?.());
  });
  return Array.from({ length: values.length / columns }, (_, row) =>
    values.slice(row * columns, (row + 1) * columns));
}

ask(APPEND, bytes(APPEND_DATA, trace));
ask(FINALIZE);
const sorted = (rows) => rows.map(String).sort();

const { traceEvents } = JSON.parse(trace);
const names = traceEvents.filter(({ name }) => name === 'thread_name');
const tracks = new Map(names.map(({ tid, args }) => [tid, args.name]));
const pieces = traceEvents.filter(({ ph }) => ph === 'X');
assert.ok(pieces.length > 0, 'the timeline has pieces');
const expected = pieces.map(({ tid, name, cat, dur }) =>
  [tracks.get(tid), name, cat, Math.round(dur * 1000)]);
const found = query(
  `select thread.name, slice.name, slice.category, slice.dur from slice
   join thread_track on slice.track_id = thread_track.id join thread using (utid)`, 4);
assert.deepEqual(sorted(found), sorted(expected));
const complaints = query("select name from stats where severity = 'error' and value > 0", 1);
assert.deepEqual(complaints, []);
console.log(`Perfetto opened ${found.length} pieces on ${tracks.size} tracks`);
