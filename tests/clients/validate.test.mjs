// `serve --validate` on a program with a planted fault (DSV4 names dsv4_faulty): position 200 of the first cache slot becomes NaN. The request
// that meets it ends with an error that names the place; everybody else gets the answer of a sound server.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { startServer } from "./server.mjs";

let server;
before(async () => {
  server = await startServer("--validate", "--max-seqs", "4", "--prefix-states", "0");
});
after(async () => assert.equal(await server.stop(), 0));

async function post(path, body) {
  const reply = await fetch(server.url + path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  return { status: reply.status, text: await reply.text() };
}
const longPrompt = Array.from({ length: 240 }, (_, i) => 300 + ((i * 37) % 900));
const long = (more = {}) => post("/v1/completions", { prompt: longPrompt, max_tokens: 8, temperature: 0, ...more });
const capital = () => post("/v1/chat/completions", { messages: [{ role: "user", content: "What is the capital of France?" }], temperature: 0 });

function assertCapital(reply) {
  assert.equal(reply.status, 200, reply.text);
  assert.equal(JSON.parse(reply.text).choices[0].message.content, "The capital of France is Paris.");
}

test("the request that meets the fault is told where", async () => {
  const reply = await long();
  assert.equal(reply.status, 500, reply.text);
  const error = JSON.parse(reply.text).error;
  assert.equal(error.type, "server_error");
  assert.match(error.message, /validate: request \d+, position 200, layer 1, kv_insert, rank 0: /);
});

test("in a stream the error is the last event", async () => {
  const reply = await long({ stream: true });
  assert.equal(reply.status, 200);
  const events = reply.text.trim().split("\n\n").map((line) => line.replace(/^data: /, ""));
  assert.equal(events.at(-1), "[DONE]");
  assert.match(JSON.parse(events.at(-2)).error.message, /position 200, layer 1, kv_insert/);
});

test("its neighbours are not disturbed", async () => {
  const [bad, ...good] = await Promise.all([long(), capital(), capital(), capital(), capital()]);
  assert.equal(bad.status, 500, bad.text);
  for (const reply of good) assertCapital(reply);
});

test("the server goes on", async () => {
  assertCapital(await capital());
  assert.equal((await fetch(server.url + "/health")).status, 200);
  assert.match(await (await fetch(server.url + "/metrics")).text(), /dsv4_/);
});
