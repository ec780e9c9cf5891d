// The engine's state, once a second while it is looked at.
import { headers } from "./settings.js";

const byId = (id) => document.getElementById(id);
const kept = 120; // seconds of the chart
const mostCells = 400; // of a cache picture; one cell is then several blocks

const speeds = [];

function showChart() {
  const top = Math.max(1, ...speeds);
  const points = speeds.map((speed, i) => `${((kept - speeds.length + i) / (kept - 1)) * 300},${78 - (speed / top) * 74}`);
  byId("e-chart").firstElementChild.setAttribute("points", points.join(" "));
}

function showLatency(seconds) {
  const rows = [["To the first token", seconds.first_token], ["Between tokens", seconds.between_tokens], ["Whole request", seconds.request]];
  byId("e-latency").replaceChildren(
    ...rows.map(([name, p]) => {
      const row = document.createElement("tr");
      const head = document.createElement("th");
      head.scope = "row";
      head.textContent = name;
      row.append(head);
      for (const value of [p.p50, p.p95, p.p99]) row.insertCell().textContent = p.count ? (value * 1000).toFixed(value < 0.1 ? 1 : 0) : "–";
      row.insertCell().textContent = p.count;
      return row;
    }),
  );
}

function showPool(name, title, pool) {
  let view = byId(`pool-${name}`);
  if (!view) {
    view = document.createElement("div");
    view.id = `pool-${name}`;
    view.className = "pool";
    const cells = document.createElement("div");
    cells.className = "cells";
    cells.setAttribute("role", "img");
    view.append(document.createElement("p"), cells);
    byId("e-blocks").append(view);
  }
  const used = pool.total - pool.free;
  const text = `${title}: ${used} of ${pool.total} blocks used`;
  view.firstChild.textContent = text;
  const cells = view.lastChild;
  cells.setAttribute("aria-label", text);
  const count = Math.min(pool.total, mostCells);
  while (cells.children.length < count) cells.append(document.createElement("i"));
  const filled = pool.total ? Math.ceil((used / pool.total) * count) : 0;
  [...cells.children].forEach((cell, i) => cell.classList.toggle("used", i < filled));
}

async function update() {
  const response = await fetch("live", { headers: headers() });
  if (!response.ok) {
    byId("e-state").textContent = response.status === 401 ? "needs the API key" : `error ${response.status}`;
    return;
  }
  const s = await response.json();
  const figures = {
    state: s.state, running: s.requests.running, waiting: s.requests.waiting, ended: s.requests.ended, rejected: s.requests.rejected, cancelled: s.requests.cancelled,
    errors: s.requests.errors, preemptions: s.preemptions, generated: s.tokens_per_second.generated.toFixed(1), prompt: s.tokens_per_second.prompt.toFixed(1), cached: s.tokens.cached,
  };
  for (const [name, value] of Object.entries(figures)) byId(`e-${name}`).textContent = value;
  speeds.push(s.tokens_per_second.generated);
  if (speeds.length > kept) speeds.shift();
  showChart();
  showLatency(s.seconds);
  showPool("ratio4", "One row for 4 tokens", s.blocks.ratio4);
  showPool("ratio128", "One row for 128 tokens", s.blocks.ratio128);
}

export function startLive(visible) {
  setInterval(() => {
    if (!visible()) return;
    update().catch(() => {
      byId("e-state").textContent = "no answer";
    });
  }, 1000);
}
