// Anthropic's own client against the server.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { npm, startServer, weatherTool } from "./server.mjs";

const Anthropic = npm("@anthropic-ai/sdk").default;
let server, client;
const model = "dsv4-tiny";

before(async () => {
  server = await startServer("--api-key", "sesame");
  client = new Anthropic({ baseURL: server.url, apiKey: "sesame", maxRetries: 0 });
});
after(async () => assert.equal(await server.stop(), 0));

const ask = (content, more = {}) => ({ model, max_tokens: 60, temperature: 0, messages: [{ role: "user", content }], ...more });
const tools = [{ name: weatherTool.name, description: weatherTool.description, input_schema: weatherTool.parameters }];

test("a message", async () => {
  const answer = await client.messages.create(ask("What is the capital of France?"));
  assert.deepEqual(answer.content, [{ type: "text", text: "The capital of France is Paris." }]);
  assert.equal(answer.stop_reason, "end_turn");
  assert.ok(answer.usage.output_tokens > 3);
});

test("a stream", async () => {
  const stream = client.messages.stream(ask("What is the capital of France?"));
  let text = "";
  stream.on("text", (piece) => (text += piece));
  const last = await stream.finalMessage();
  assert.equal(text, "The capital of France is Paris.");
  assert.equal(last.content[0].text, text);
  assert.equal(last.stop_reason, "end_turn");
});

test("a tool's round trip, whole and streamed", async () => {
  const question = { role: "user", content: "What is the weather in Paris?" };
  const first = await client.messages.create({ model, max_tokens: 200, temperature: 0, messages: [question], tools });
  assert.equal(first.stop_reason, "tool_use");
  const use = first.content.find((block) => block.type === "tool_use");
  assert.equal(use.name, "get_weather");
  assert.equal(use.input.city, "Paris");
  const streamed = await client.messages.stream({ model, max_tokens: 200, temperature: 0, messages: [question], tools }).finalMessage();
  assert.deepEqual(streamed.content.find((block) => block.type === "tool_use").input, use.input);
  const second = await client.messages.create({
    model, max_tokens: 40, temperature: 0, tools,
    messages: [question, { role: "assistant", content: first.content }, { role: "user", content: [{ type: "tool_result", tool_use_id: use.id, content: "sunny, 20 degrees" }] }],
  });
  assert.ok(second.content.length > 0);
});

test("a stop sequence is named", async () => {
  const answer = await client.messages.create(ask("What is the capital of France?", { stop_sequences: ["France", "xyz"] }));
  assert.equal(answer.stop_reason, "stop_sequence");
  assert.equal(answer.stop_sequence, "France");
});

test("tokens are counted", async () => {
  assert.ok((await client.messages.countTokens({ model, messages: [{ role: "user", content: "Hi" }] })).input_tokens > 2);
});

test("errors", async () => {
  await assert.rejects(client.messages.create(ask("x", { temperature: 9 })), (e) => e instanceof Anthropic.BadRequestError && e.error.error.type === "invalid_request_error");
  const stranger = new Anthropic({ baseURL: server.url, apiKey: "wrong", maxRetries: 0 });
  await assert.rejects(stranger.messages.create(ask("x")), (e) => e instanceof Anthropic.AuthenticationError);
});
