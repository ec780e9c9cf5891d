// The page: which part shows, colours, and the server's state in the header.
import { headers } from "./settings.js";
import { startChat } from "./chat.js";
import { startLive } from "./live.js";

const byId = (id) => document.getElementById(id);

function show() {
  const engine = location.hash === "#engine";
  byId("page-chat").hidden = engine;
  byId("page-engine").hidden = !engine;
  for (const [id, on] of [["tab-chat", !engine], ["tab-engine", engine]]) {
    if (on) byId(id).setAttribute("aria-current", "page");
    else byId(id).removeAttribute("aria-current");
  }
}

const themes = ["", "light", "dark"];
const themeNames = { "": "as the system has them", light: "light", dark: "dark" };
function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  byId("theme").setAttribute("aria-label", `Colours: ${themeNames[theme]}`);
  byId("theme").title = `Colours: ${themeNames[theme]}`;
  localStorage.setItem("theme", theme);
}

async function showState() {
  const status = byId("status");
  try {
    const health = await (await fetch("health")).json();
    status.textContent = health.status === "ok" ? "" : health.message ? `${health.status}: ${health.message}` : health.status;
    if (!byId("model").textContent) {
      const models = await fetch("v1/models", { headers: headers() });
      if (models.ok) byId("model").textContent = (await models.json()).data[0].id;
    }
  } catch {
    status.textContent = "the server does not answer";
  }
}

setTheme(themes.includes(localStorage.getItem("theme")) ? localStorage.getItem("theme") : "");
byId("theme").addEventListener("click", () => setTheme(themes[(themes.indexOf(document.documentElement.dataset.theme ?? "") + 1) % themes.length]));
addEventListener("hashchange", show);
show();
startChat();
startLive(() => !byId("page-engine").hidden && !document.hidden);
showState();
setInterval(() => document.hidden || showState(), 5000);
