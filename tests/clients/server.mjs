// Starts `dsv4 serve` for tests: the program is named by the environment variable DSV4, the model is the shipped tiny one.
import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("../../", import.meta.url));

// A package of tools/npm. Ends the test program as skipped (status 77) when it is not installed.
export function npm(name) {
  const require = createRequire(root + "tools/npm/package.json");
  try {
    return require(name);
  } catch (error) {
    if (error.code !== "MODULE_NOT_FOUND") throw error;
    console.log(`skipped: npm ci in tools/npm installs ${name}`);
    process.exit(77);
  }
}

export async function startServer(...flags) {
  const program = process.env.DSV4;
  if (!program || !existsSync(program)) throw new Error("DSV4 must name the dsv4 program");
  const child = spawn(program, ["serve", "--port", "0", "--context", "4096", "--quiet", ...flags], { cwd: root, stdio: ["ignore", "pipe", "pipe"] });
  let log = "";
  child.stderr.on("data", (bytes) => (log += bytes));
  const url = await new Promise((resolve, reject) => {
    let text = "";
    child.stdout.on("data", (bytes) => {
      text += bytes;
      const found = /listening on (http:\S+)/.exec(text);
      if (found) resolve(found[1]);
    });
    child.on("exit", (code) => reject(new Error(`dsv4 serve ended with ${code}: ${log}`)));
  });
  for (;;) {
    const health = await fetch(url + "/health");
    if (health.ok) break;
    if ((await health.json()).status === "failed") throw new Error(log);
    await new Promise((wait) => setTimeout(wait, 50));
  }
  const live = async (key) => (await fetch(url + "/live", { headers: key ? { Authorization: `Bearer ${key}` } : {} })).json();
  const stop = () =>
    new Promise((resolve) => {
      child.removeAllListeners("exit");
      child.on("exit", (code, signal) => resolve(signal ?? code));
      child.kill("SIGTERM");
    });
  return { url, live, stop, log: () => log, pid: child.pid };
}

export const weatherTool = {
  name: "get_weather",
  description: "Weather for a city",
  parameters: {
    type: "object",
    properties: { city: { type: "string" } },
    required: ["city"],
  },
};
