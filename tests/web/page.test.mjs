// The web page in a real browser, against the shipped tiny model. Screenshots go to the folder that SHOTS names, if it does.
import assert from "node:assert/strict";
import { existsSync, mkdirSync } from "node:fs";
import { after, before, test } from "node:test";
import { npm, startServer, weatherTool } from "../clients/server.mjs";

const { chromium } = npm("playwright-core");
const browserPath = process.env.CHROMIUM ?? "/usr/bin/chromium";
if (!existsSync(browserPath)) {
  console.log("skipped: Debian's chromium is not installed");
  process.exit(77);
}

let server, browser, page;
const faults = [];

before(async () => {
  server = await startServer("--temperature", "0");
  browser = await chromium.launch({ executablePath: browserPath, args: ["--no-sandbox", "--disable-gpu"] });
  const context = await browser.newContext({ viewport: { width: 1100, height: 800 }, colorScheme: "light" });
  page = await context.newPage();
  page.on("console", (message) => message.type() === "error" && faults.push(message.text()));
  page.on("pageerror", (error) => faults.push(String(error)));
  await page.goto(server.url);
});
after(async () => {
  await browser?.close();
  await server?.stop();
});

async function shot(name) {
  if (!process.env.SHOTS) return;
  mkdirSync(process.env.SHOTS, { recursive: true });
  await page.screenshot({ path: `${process.env.SHOTS}/${name}.png` });
}

const answers = () => page.locator(".message.assistant");
const idle = () => page.locator("#send").waitFor({ state: "visible", timeout: 60000 });
async function send(text) {
  await page.getByLabel("Message", { exact: true }).fill(text);
  await page.keyboard.press("Enter");
}
async function set(fields) {
  await page.getByRole("button", { name: "Settings" }).click();
  for (const [name, value] of Object.entries(fields)) {
    const field = page.locator(`#settings [name="${name}"]`);
    if ((await field.evaluate((node) => node.tagName)) === "SELECT") await field.selectOption(value);
    else await field.fill(value);
  }
  await page.getByRole("button", { name: "Done" }).click();
}

test("opens with the message box in focus", async () => {
  assert.equal(await page.title(), "dsv4");
  await page.locator("#model", { hasText: "dsv4-tiny" }).waitFor();
  assert.equal(await page.evaluate(() => document.activeElement.id), "message");
  await shot("1-empty");
});

test("sends and shows the answer as it comes", async () => {
  await send("What is the capital of France?");
  await page.locator(".message.user", { hasText: "What is the capital of France?" }).waitFor();
  await idle();
  assert.equal(await answers().locator(".text").innerText(), "The capital of France is Paris.");
  assert.match(await answers().locator(".note").innerText(), /tokens\/s/);
  assert.equal(await page.locator("#announce").innerText(), "The capital of France is Paris."); // what a screen reader hears
  await shot("2-answer");
});

test("survives a reload", async () => {
  await page.reload();
  assert.equal(await answers().locator(".text").innerText(), "The capital of France is Paris.");
});

test("edit asks again from there, retry asks for another answer", async () => {
  await page.getByRole("button", { name: "Edit this message" }).click();
  await page.getByLabel("Edit the message").fill("What is 12 + 30?");
  await page.keyboard.press("Enter");
  await page.locator(".message.user", { hasText: "12 + 30" }).waitFor();
  await idle();
  assert.equal(await page.locator(".message").count(), 2);
  assert.match(await answers().locator(".text").innerText(), /42/);
  await page.getByRole("button", { name: "Ask for another answer" }).click();
  await idle();
  assert.equal(await page.locator(".message").count(), 2);
  assert.match(await answers().locator(".text").innerText(), /42/);
});

test("stop keeps what has come", async () => {
  await page.getByRole("button", { name: "New chat" }).click();
  await set({ temperature: "2", seed: "15" }); // rambles on for 297 tokens
  await send("Tell me a story.");
  await page.waitForFunction(() => document.querySelector(".message.assistant .text")?.textContent.length > 5, null, { timeout: 60000 });
  await page.keyboard.press("Escape");
  await idle();
  assert.match(await answers().locator(".note").innerText(), /stopped/);
  for (let i = 0; (await server.live()).requests.outstanding > 0; ++i) {
    assert.ok(i < 100, "the stopped request still runs");
    await page.waitForTimeout(50);
  }
  await set({ temperature: "", seed: "" });
});

test("thinking is folded, tools are shown, a result goes back", async () => {
  await page.getByRole("button", { name: "New chat" }).click();
  await set({ tools: JSON.stringify([{ type: "function", function: weatherTool }]) });
  await send("What is the weather in Paris?");
  await idle();
  await page.locator(".call summary", { hasText: "Calls get_weather" }).waitFor();
  assert.match(await page.locator(".call pre").innerText(), /"city": "Paris"/);
  await shot("3-tool");
  await page.getByRole("button", { name: "Write the result of get_weather" }).click();
  await page.getByLabel("Result of get_weather").fill("sunny, 20 degrees");
  await page.keyboard.press("Enter");
  await page.locator(".message.tool").waitFor();
  await idle();
  assert.equal(await answers().count(), 2);
  await set({ tools: "", effort: "high" });
  await page.getByRole("button", { name: "New chat" }).click();
  await send("What is 12 + 30?");
  await idle();
  const thinking = page.locator(".message.assistant details").first();
  await thinking.waitFor();
  assert.equal(await thinking.evaluate((node) => node.open), false);
  await thinking.locator("summary").click();
  await shot("4-thinking");
  await set({ effort: "" });
});

test("markdown becomes elements, and nothing of it becomes HTML", async () => {
  const source = "# Title\n\nSome **bold**, `code & <b>`, [a link](https://example.org), [bad](javascript:alert(1)).\n\n- one\n- two\n\n```js\nlet x = 1 < 2;\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n<img src=x onerror=alert(1)>";
  await page.evaluate((text) => localStorage.setItem("conversation", JSON.stringify([{ role: "user", content: "<b>x</b>" }, { role: "assistant", content: text, done: true }])), source);
  await page.reload();
  const text = answers().locator(".text");
  assert.equal(await text.locator("img, script").count(), 0);
  assert.equal(await page.locator(".message.user .body").innerText(), "<b>x</b>");
  assert.match(await text.innerText(), /<img src=x onerror=alert\(1\)>/);
  if (await page.evaluate(() => Boolean(globalThis.marked))) {
    assert.equal(await text.locator("h3").innerText(), "Title");
    assert.equal(await text.locator("strong").innerText(), "bold");
    assert.equal(await text.locator("p code").innerText(), "code & <b>");
    assert.equal(await text.locator("pre").innerText(), "let x = 1 < 2;");
    assert.equal(await text.locator("li").count(), 2);
    assert.equal(await text.locator("td").count(), 2);
    assert.deepEqual(await text.locator("a").evaluateAll((all) => all.map((a) => a.href)), ["https://example.org/"]);
  }
  await shot("5-markdown");
  await page.getByRole("button", { name: "New chat" }).click();
});

test("an error is shown with a way on", async () => {
  await set({ max_tokens: "1000000" });
  await send("Hi");
  await page.getByRole("alert").filter({ hasText: "the context holds" }).waitFor();
  await shot("6-error");
  await set({ max_tokens: "5" });
  await page.getByRole("button", { name: "Ask for another answer" }).click();
  await idle();
  assert.equal(await page.locator(".message .fault").count(), 0);
  await set({ max_tokens: "" });
  await page.getByRole("button", { name: "Settings" }).click();
  await page.locator('#settings [name="tools"]').fill("{");
  await page.getByRole("button", { name: "Done" }).click();
  await page.locator("#tools-fault", { hasText: "not valid JSON" }).waitFor();
  await page.keyboard.press("Escape");
});

test("the engine's page", async () => {
  await page.getByRole("link", { name: "Engine" }).click();
  await page.locator("#e-state", { hasText: "ready" }).waitFor();
  assert.ok(Number(await page.locator("#e-ended").innerText()) > 5);
  assert.ok((await page.locator("#pool-ratio4 i").count()) > 3);
  assert.match(await page.locator("#pool-ratio4 .cells").getAttribute("aria-label"), /blocks used/);
  assert.equal(await page.locator("#e-latency tr").count(), 3);
  await shot("7-engine");
});

test("dark, and phone width", async () => {
  await page.emulateMedia({ colorScheme: "dark" });
  await shot("8-engine-dark");
  await page.getByRole("link", { name: "Chat" }).click();
  await page.setViewportSize({ width: 360, height: 640 });
  await send("What is the capital of France?");
  await idle();
  const width = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
  assert.ok(width[0] <= width[1], `the page is ${width[0]} wide on a phone of ${width[1]}`);
  for (const id of ["#message", "#send"]) {
    const box = await page.locator(id).boundingBox();
    assert.ok(box.y + box.height <= 640 && box.x + box.width <= 360, `${id} is within the screen`);
  }
  await shot("9-phone-dark");
  await page.getByRole("button", { name: /Colours/ }).click(); // light, against the system
  assert.equal(await page.evaluate(() => getComputedStyle(document.body).backgroundColor), "rgb(255, 255, 255)");
  await shot("10-phone-light");
});

test("keyboard alone reaches everything that can be done", async () => {
  await page.setViewportSize({ width: 1100, height: 800 });
  await page.reload();
  await page.evaluate(() => document.activeElement.blur());
  const reached = new Set();
  for (let i = 0; i < 25; ++i) {
    await page.keyboard.press("Tab");
    reached.add(await page.evaluate(() => document.activeElement.id || document.activeElement.getAttribute("aria-label") || document.activeElement.textContent));
  }
  for (const name of ["tab-chat", "tab-engine", "theme", "message", "send", "clear", "open-settings", "Ask for another answer", "Edit this message and ask again"]) {
    assert.ok(reached.has(name), `${name} is among ${[...reached].join(" | ")}`);
  }
});

test("no fault in the console", () => {
  const serious = faults.filter((text) => !/status of 4\d\d/.test(text)); // the refusals asked for above
  assert.deepEqual(serious, []);
});
