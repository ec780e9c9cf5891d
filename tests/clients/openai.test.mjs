// OpenAI's own client against the server: what it reads is what users' programs read.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { npm, startServer, weatherTool } from "./server.mjs";

const OpenAI = npm("openai").default;
let server, client, model;

before(async () => {
  server = await startServer("--api-key", "sesame");
  client = new OpenAI({ baseURL: server.url + "/v1", apiKey: "sesame", maxRetries: 0 });
  model = (await client.models.list()).data[0].id;
});
after(async () => assert.equal(await server.stop(), 0));

const tools = [{ type: "function", function: weatherTool }];
const ask = (content, more = {}) => ({ model, temperature: 0, messages: [{ role: "user", content }], ...more });

test("models", async () => {
  assert.equal((await client.models.retrieve(model)).id, model);
});

test("chat", async () => {
  const answer = await client.chat.completions.create(ask("What is the capital of France?"));
  assert.equal(answer.choices[0].message.content, "The capital of France is Paris.");
  assert.equal(answer.choices[0].finish_reason, "stop");
  assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
});

test("stream", async () => {
  const stream = await client.chat.completions.create(ask("What is the capital of France?", { stream: true, stream_options: { include_usage: true } }));
  let text = "", usage = null, finish = null, chunks = 0;
  for await (const chunk of stream) {
    ++chunks;
    if (chunk.usage) usage = chunk.usage;
    text += chunk.choices[0]?.delta.content ?? "";
    finish = chunk.choices[0]?.finish_reason ?? finish;
  }
  assert.equal(text, "The capital of France is Paris.");
  assert.equal(finish, "stop");
  assert.ok(chunks > 3);
  assert.ok(usage.completion_tokens > 3);
});

test("stream helper", async () => {
  const runner = client.chat.completions.stream(ask("What is the capital of France?"));
  assert.equal(await runner.finalContent(), "The capital of France is Paris.");
});

test("several at once are what each is alone", async () => {
  const questions = ["What is the capital of France?", "What is 12 + 30?", "你好，请介绍一下你自己。", "Tell me a story."];
  const alone = [];
  for (const q of questions) alone.push((await client.chat.completions.create(ask(q, { max_tokens: 24 }))).choices[0].message.content);
  const together = await Promise.all(questions.map((q) => client.chat.completions.create(ask(q, { max_tokens: 24 }))));
  assert.deepEqual(together.map((a) => a.choices[0].message.content), alone);
});

test("a tool's round trip", async () => {
  const messages = [{ role: "user", content: "What is the weather in Paris?" }];
  const first = await client.chat.completions.create({ model, temperature: 0, messages, tools });
  assert.equal(first.choices[0].finish_reason, "tool_calls");
  const [call] = first.choices[0].message.tool_calls;
  assert.equal(call.function.name, "get_weather");
  assert.equal(JSON.parse(call.function.arguments).city, "Paris");
  messages.push(first.choices[0].message, { role: "tool", tool_call_id: call.id, content: "sunny, 20 degrees" });
  const second = await client.chat.completions.create({ model, temperature: 0, messages, tools, max_tokens: 40 });
  assert.ok(second.choices[0].message.content.length > 0);

  const streamed = await client.chat.completions.stream({ model, temperature: 0, messages: messages.slice(0, 1), tools }).finalChatCompletion();
  assert.deepEqual(streamed.choices[0].message.tool_calls[0].function.arguments, call.function.arguments);
});

test("a forced call follows its schema", async () => {
  for (const tool_choice of ["required", { type: "function", function: { name: "get_weather" } }]) {
    const answer = await client.chat.completions.create(ask("Tell me a story.", { tools, tool_choice, max_tokens: 200, logit_bias: {} }));
    const call = answer.choices[0].message.tool_calls[0];
    assert.equal(call.function.name, "get_weather");
    if (answer.choices[0].finish_reason === "tool_calls") assert.deepEqual(Object.keys(JSON.parse(call.function.arguments)), ["city"]);
  }
});

const schema = {
  type: "object",
  properties: { name: { enum: ["Anna", "Otto"] }, age: { type: "integer", minimum: 18, maximum: 99 }, tags: { type: "array", items: { type: "string", maxLength: 4 }, maxItems: 2 } },
  required: ["name", "age", "tags"],
  additionalProperties: false,
};

test("JSON by a schema, whatever is asked", async () => {
  for (const seed of [1, 2, 3, 4]) {
    const answer = await client.chat.completions.create(
      ask("Tell me a story.", { temperature: 1, seed, max_tokens: 300, response_format: { type: "json_schema", json_schema: { name: "person", strict: true, schema } } }),
    );
    assert.equal(answer.choices[0].finish_reason, "stop");
    const person = JSON.parse(answer.choices[0].message.content);
    assert.ok(["Anna", "Otto"].includes(person.name));
    assert.ok(Number.isInteger(person.age) && person.age >= 18 && person.age <= 99);
    assert.ok(person.tags.length <= 2 && person.tags.every((t) => [...t].length <= 4));
  }
});

test("a JSON object", async () => {
  const answer = await client.chat.completions.create(ask("Give me JSON.", { max_tokens: 400, response_format: { type: "json_object" } }));
  if (answer.choices[0].finish_reason === "stop") assert.equal(typeof JSON.parse(answer.choices[0].message.content), "object");
  assert.equal(answer.choices[0].message.content[0], "{");
});

test("log probabilities", async () => {
  const answer = await client.chat.completions.create(ask("What is the capital of France?", { logprobs: true, top_logprobs: 3 }));
  const { content } = answer.choices[0].logprobs;
  assert.equal(content.map((t) => t.token).join(""), "The capital of France is Paris.");
  for (const t of content) {
    assert.ok(t.logprob <= 0);
    assert.equal(t.top_logprobs.length, 3);
    assert.equal(t.top_logprobs[0].token, t.token); // greedy: the best is the chosen one
  }
});

test("completions", async () => {
  const answer = await client.completions.create({ model, prompt: ["The capital of", "One"], max_tokens: 5, temperature: 0, logprobs: 2, echo: true });
  assert.equal(answer.choices.length, 2);
  assert.ok(answer.choices[0].text.startsWith("The capital of"));
  assert.equal(answer.choices[0].logprobs.tokens.length, answer.choices[0].logprobs.token_logprobs.length);
});

test("responses", async () => {
  const whole = await client.responses.create({ model, input: "What is the capital of France?", temperature: 0 });
  assert.equal(whole.output_text, "The capital of France is Paris.");
  const stream = await client.responses.create({ model, input: "What is the capital of France?", temperature: 0, stream: true });
  let text = "", last = "";
  for await (const event of stream) {
    last = event.type;
    if (event.type === "response.output_text.delta") text += event.delta;
  }
  assert.equal(text, "The capital of France is Paris.");
  assert.equal(last, "response.completed");
  const call = await client.responses.create({ model, input: "What is the weather in Paris?", temperature: 0, tools: [{ type: "function", strict: true, ...weatherTool }] });
  const item = call.output.find((i) => i.type === "function_call");
  assert.equal(JSON.parse(item.arguments).city, "Paris");
});

test("a stop string, and a cut-off answer", async () => {
  const stopped = await client.chat.completions.create(ask("What is the capital of France?", { stop: ["France"] }));
  assert.equal(stopped.choices[0].message.content, "The capital of ");
  assert.equal(stopped.choices[0].finish_reason, "stop");
  const cut = await client.chat.completions.create(ask("What is the capital of France?", { max_tokens: 2 }));
  assert.equal(cut.choices[0].finish_reason, "length");
  assert.equal(cut.usage.completion_tokens, 2);
});

test("an abort frees its place", async () => {
  const stream = await client.chat.completions.create(ask("Tell me a story.", { stream: true, max_tokens: 2000, ignore_eos: true }));
  for await (const chunk of stream) {
    if (chunk.choices[0].delta.content) break; // the client closes the connection
  }
  for (let i = 0; ; ++i) {
    const { requests } = await server.live("sesame");
    if (requests.outstanding === 0) break;
    assert.ok(i < 100, "the aborted request still runs");
    await new Promise((wait) => setTimeout(wait, 50));
  }
});

test("errors", async () => {
  await assert.rejects(client.chat.completions.create(ask("x", { temperature: 9 })), (e) => e instanceof OpenAI.BadRequestError && e.param === "temperature");
  await assert.rejects(client.chat.completions.create(ask("word ".repeat(6000))), (e) => e.code === "context_length_exceeded" && /4096/.test(e.message));
  await assert.rejects(client.chat.completions.create({ ...ask("x"), model: "gpt-9" }), (e) => e instanceof OpenAI.NotFoundError);
  const stranger = new OpenAI({ baseURL: server.url + "/v1", apiKey: "wrong", maxRetries: 0 });
  await assert.rejects(stranger.models.list(), (e) => e instanceof OpenAI.AuthenticationError);
});

test("no prompt text in the log", () => {
  assert.ok(server.log().includes('"path":"/v1/chat/completions"'));
  assert.ok(!server.log().includes("capital of France"));
});
