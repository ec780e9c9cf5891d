// The server under load and under abuse, with the shipped tiny model. SOAK=1 runs the long form.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { promisify } from "node:util";
import { startServer } from "../clients/server.mjs";

const soak = Boolean(process.env.SOAK);
const run = promisify(execFile);
let server;

before(async () => {
  server = await startServer("--max-seqs", "16", "--max-queue", "64", "--receive-timeout", "1", "--no-log");
});
after(async () => assert.equal(await server.stop(), 0));

async function bench(...flags) {
  const { stdout } = await run(process.env.DSV4, ["bench", "serve", "--url", server.url, "--json", ...flags.map(String)], { maxBuffer: 1 << 26 });
  return JSON.parse(stdout);
}

const residentKiB = () => Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${server.pid}/status`, "utf8"))[1]);

async function settled() {
  for (let i = 0; (await server.live()).requests.outstanding > 0; ++i) {
    assert.ok(i < 600, "requests are stuck");
    await new Promise((wait) => setTimeout(wait, 50));
  }
}

// A small pseudo-random sequence, so that a failure repeats.
function sequence(seed) {
  let state = seed >>> 0;
  return (below) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

test("mixed requests with random cancels: no error, no leak, survivors as if alone", async () => {
  const mix = ["--prompt-tokens", "5-60:0.8,100-300:0.2", "--answer-tokens", "4-24", "--cancel", "0.3", "-c", "24"];
  await bench("-n", soak ? 100 : 30, ...mix, "--seed", 1, "--check", 3);
  await settled();
  const before = residentKiB();
  const report = await bench("-n", soak ? 1000 : 60, ...mix, "--seed", 2, "--check", soak ? 1000 : 6);
  assert.equal(report.requests.failed, 0, JSON.stringify(report.errors));
  assert.ok(report.requests.cancelled > 5);
  await settled();
  const grown = residentKiB() - before;
  console.log(`${report.requests.completed} completed, ${report.requests.cancelled} cancelled; resident memory ${before} KiB, then ${grown} more`);
  if (!process.env.SANITIZED) assert.ok(grown < (soak ? 12 : 32) << 10, `resident memory grew by ${grown} KiB`);  // the short form's first requests do not touch all yet
});

test("requests that share a prefix take it from the cache", async () => {
  const report = await bench("-n", 12, "-c", 3, "--shared-prefix", 200, "--prompt-tokens", 220, "--answer-tokens", 4, "--seed", 3);
  assert.equal(report.requests.failed, 0);
  assert.ok(report.cached_tokens >= 200 * 5, `${report.cached_tokens} tokens came from the cache`);
});

test("a client that leaves while it waits, in its prompt or in its answer frees its place and disturbs nobody", async () => {
  const own = await startServer("--max-seqs", "1");
  const tokens = (length, seed) => Array.from({ length }, (unused, i) => 300 + ((i * 37 + seed * 101) % 900));
  const ask = (body, signal) =>
    fetch(own.url + "/v1/completions", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ temperature: 0, ignore_eos: true, ...body }), signal });
  const requests = async () => (await own.live()).requests;
  const becomes = async (what, expected) => {
    for (let i = 0; ; ++i) {
      const now = await requests();
      if (Object.entries(expected).every(([name, value]) => now[name] === value)) return;
      assert.ok(i < 400, `${what}: ${JSON.stringify(now)} does not become ${JSON.stringify(expected)}`);
      await new Promise((wait) => setTimeout(wait, 25));
    }
  };
  const left = (promise) => assert.rejects(promise, { name: "AbortError" });
  try {
    const body = { prompt: tokens(40, 1), max_tokens: 400 };
    const alone = await (await ask(body)).json();

    const working = ask(body);  // the one that must not notice
    await becomes("it runs", { running: 1 });
    const waiting = new AbortController();
    const second = ask({ prompt: tokens(40, 2), max_tokens: 400 }, waiting.signal);
    await becomes("the second waits", { outstanding: 2 });
    waiting.abort();
    await left(second);
    await becomes("the second has left", { outstanding: 1 });
    assert.deepEqual((await (await working).json()).choices, alone.choices);

    const inPrompt = new AbortController();
    const third = ask({ prompt: tokens(3900, 3), max_tokens: 10 }, inPrompt.signal);
    await becomes("the third is in its prompt", { running: 1 });
    inPrompt.abort();
    await left(third);
    await becomes("the third has left", { outstanding: 0, running: 0 });

    const inAnswer = new AbortController();
    const fourth = await ask({ prompt: tokens(40, 4), max_tokens: 3000, stream: true }, inAnswer.signal);
    await fourth.body.getReader().read();
    inAnswer.abort();
    await becomes("the fourth has left", { outstanding: 0, running: 0 });
    assert.equal((await requests()).cancelled, 3);
    assert.deepEqual((await (await ask(body)).json()).choices, alone.choices);
  } finally {
    assert.equal(await own.stop(), 0);
  }
});

test("states on disk survive a restart", async () => {
  const directory = mkdtempSync(join(tmpdir(), "dsv4-states-"));
  const body = JSON.stringify({ prompt: Array.from({ length: 300 }, (unused, i) => 300 + ((i * 37) % 900)), max_tokens: 8, temperature: 0, ignore_eos: true, logprobs: 3 });
  try {
    const answers = [];
    for (let run = 0; run < 3; ++run) {
      if (run === 2) {  // the second restart finds damaged files
        for (const name of readdirSync(directory)) {
          const path = join(directory, name), bytes = readFileSync(path);
          bytes[bytes.length >> 1] ^= 1;
          writeFileSync(path, bytes);
        }
      }
      const own = await startServer("--cache-dir", directory, "--cache-bytes", "100MB");
      const reply = await fetch(own.url + "/v1/completions", { method: "POST", headers: { "Content-Type": "application/json" }, body });
      answers.push(await reply.json());
      assert.equal(await own.stop(), 0);
      if (run === 2) assert.match(own.log(), /prefix cache: ignored .*damaged/);
    }
    assert.deepEqual(answers.map((a) => a.usage.prompt_tokens_details.cached_tokens), [0, 299, 0]);
    for (const answer of answers) assert.deepEqual(answer.choices, answers[0].choices);  // the text, and every log probability
  } finally {
    rmSync(directory, { recursive: true });
  }
});

test("malformed requests: every answer is a refusal, nothing sticks", async () => {
  const random = sequence(7);
  const good = JSON.stringify({ messages: [{ role: "user", content: "Hi" }], max_tokens: 2, temperature: 0, stop: ["x"], tools: [], response_format: { type: "text" } });
  const mutate = (text) => {
    let out = text;
    for (let edits = 1 + random(3); edits > 0; --edits) {
      const at = random(out.length + 1);
      const kind = random(4);
      if (kind === 0) out = out.slice(0, at) + String.fromCharCode(32 + random(95)) + out.slice(at + 1);
      else if (kind === 1) out = out.slice(0, at) + out.slice(at + 1 + random(6));
      else if (kind === 2) out = out.slice(0, at) + out.slice(random(out.length), random(out.length)) + out.slice(at);
      else out = out.slice(0, at);
    }
    return out;
  };
  const paths = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/tokenize", "/v1/detokenize"];
  // Sends `pieces`, `pause` ms apart, and reads the answer's head; `leave`: goes away instead, in the middle.
  const ask = (pieces, { pause = 0, leave = false } = {}) =>
    new Promise((resolve, reject) => {
      const { hostname, port } = new URL(server.url);
      const socket = connect(Number(port), hostname);
      let text = "";
      socket.setTimeout(60000, () => reject(new Error("no answer to " + pieces.join(""))));
      socket.on("error", () => resolve(text));
      socket.on("data", (piece) => {
        text += piece;
        if (text.includes("\r\n\r\n")) socket.destroy();
      });
      socket.on("close", () => resolve(text));
      (async () => {
        for (const piece of pieces) {
          if (socket.destroyed) return;
          socket.write(piece);
          if (pause) await new Promise((wait) => setTimeout(wait, pause));
        }
        if (leave) setTimeout(() => socket.destroy(), 20);
      })();
    });
  const isJson = (text) => {
    try {
      JSON.parse(text);
      return true;
    } catch {
      return false;
    }
  };
  const count = soak ? 10000 : 400;
  const seen = {};
  const one = async () => {
    const path = paths[random(paths.length)];
    const body = mutate(good);
    const bytes = Buffer.byteLength(body);
    const start = `POST ${path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n`;
    const kind = random(20);
    let text, may = [];
    if (kind < 11) {  // broken JSON, broken fields; some mutations are still good requests
      text = await ask([`${start}Content-Length: ${bytes}\r\n\r\n${body}`]);
      if (isJson(body)) may = [200];
    } else if (kind < 14) {  // broken heads
      text = await ask([mutate(`${start}Content-Length: ${bytes}\r\n\r\n`) + body]);
      may = [200, 505];  // the head may still be good, or of another version of HTTP
    } else if (kind === 14) {  // a body that never comes to its end
      text = await ask([`${start}Content-Length: ${bytes + 10}\r\n\r\n${body}`]);
    } else if (kind === 15) {  // leaves in the middle
      await ask([`${start}Content-Length: 500\r\n\r\n${body}`], { leave: true });
      return;
    } else if (kind === 16) {  // a head that comes byte by byte, and too slowly
      text = await ask([...start.slice(0, 30)], { pause: 60 });
    } else if (kind === 17) {  // header bombs: one long line, and many
      const bomb = random(2) ? `X-Long: ${"y".repeat(200000)}\r\n` : Array.from({ length: 5000 }, (unused, i) => `X-${i}: ${i}\r\n`).join("");
      text = await ask([`${start}${bomb}Content-Length: 2\r\n\r\n{}`]);
    } else if (kind === 18) {  // broken chunks
      const size = ["zz", "-5", "ffffffffffffffffff", "5;x=y", "", "10"][random(6)];
      text = await ask([`${start}Transfer-Encoding: chunked\r\n\r\n${size}\r\nhello\r\n0\r\n\r\n`]);
    } else {  // two lengths, a length and chunks, a length that is none
      const lengths = ["Content-Length: 2\r\nContent-Length: 3", "Content-Length: 2\r\nTransfer-Encoding: chunked", "Content-Length: -1", "Content-Length: 99999999999999999999", "Transfer-Encoding: gzip"][random(5)];
      text = await ask([`${start}${lengths}\r\n\r\n{}`]);
    }
    const status = Number(/^HTTP\/1\.1 (\d+)/.exec(text)?.[1]);
    seen[status] = (seen[status] ?? 0) + 1;
    assert.ok((status >= 400 && status < 500) || may.includes(status), `kind ${kind} of ${path}, ${body}: answered ${text.slice(0, 200)}`);
  };
  let done = 0;
  const worker = async () => {
    while (done++ < count) await one();
  };
  await Promise.all(Array.from({ length: 16 }, worker));
  await settled();
  console.log(`answers: ${JSON.stringify(seen)}`);
  const answer = await fetch(server.url + "/v1/chat/completions", { method: "POST", headers: { "Content-Type": "application/json" }, body: good });
  assert.equal(answer.status, 200);
});

// Pairs one after the other and the median of their ratios: a neighbour of this machine slows both of a pair.
test("16 streams give at least three times the tokens of one", { skip: !soak }, async () => {
  const rate = async (...flags) => (await bench(...flags, "--prompt-tokens", 16, "--answer-tokens", 64, "--check", 0)).per_second.answer_tokens;
  const ratios = [];
  for (let pair = 0; pair < 7; ++pair) {
    const one = await rate("-n", 8, "-c", 1, "--seed", 10 + pair), many = await rate("-n", 64, "-c", 16, "--seed", 30 + pair);
    console.log(`one stream ${one.toFixed(1)} tokens/s, sixteen ${many.toFixed(1)}: ${(many / one).toFixed(2)} times`);
    ratios.push(many / one);
  }
  const median = ratios.sort((a, b) => a - b)[3];
  assert.ok(median >= 3, `the median is ${median.toFixed(2)} times`);
});

// The answers are so long that the prompt is computed while they run. On a quick machine the median gap is one before or after that time, and p95 one of it.
test("a long prompt does not stop the others: p95 gap at most three times the median", { skip: !soak }, async () => {
  const quiet = bench("-n", 8, "-c", 8, "--prompt-tokens", 16, "--answer-tokens", 700, "--check", 0, "--seed", 6);
  await new Promise((wait) => setTimeout(wait, 1000));
  const long = bench("-n", 1, "-c", 1, "--prompt-tokens", 4000, "--answer-tokens", 1, "--check", 0, "--seed", 7);
  const [report] = await Promise.all([quiet, long]);
  console.log(`gaps: median ${(report.gap_seconds.p50 * 1000).toFixed(1)} ms, p95 ${(report.gap_seconds.p95 * 1000).toFixed(1)} ms`);
  assert.ok(report.gap_seconds.p95 <= 3 * report.gap_seconds.p50);
});
