// The conversation: messages, the composer, and the stream that fills the last message.
import { renderMarkdown } from "./markdown.js";
import { requestFields, startSettings } from "./settings.js";
import { streamChat } from "./stream.js";

const byId = (id) => document.getElementById(id);

// {role: "user", content} or {role: "assistant", content, reasoning, calls: [{id, name, arguments}], error, stopped, note}, and
// {role: "tool", tool_call_id, content}, which the user writes.
let conversation = [];
let controller = null; // of the answer being streamed

function save() {
  localStorage.setItem("conversation", JSON.stringify(conversation));
}

function load() {
  try {
    conversation = JSON.parse(localStorage.getItem("conversation")) ?? [];
  } catch {
    conversation = [];
  }
}

// The messages as the API takes them.
function requestMessages(system) {
  const out = system ? [{ role: "system", content: system }] : [];
  for (const m of conversation) {
    if (m.role !== "assistant") {
      out.push(m.role === "tool" ? { role: "tool", tool_call_id: m.tool_call_id, content: m.content } : { role: "user", content: m.content });
    } else if (m.content || m.calls?.length) {
      const message = { role: "assistant", content: m.content };
      if (m.reasoning) message.reasoning_content = m.reasoning;
      if (m.calls?.length) {
        message.tool_calls = m.calls.map((c) => ({ id: c.id, type: "function", function: { name: c.name, arguments: c.arguments } }));
      }
      out.push(message);
    }
  }
  return out;
}

function element(name, className, text) {
  const node = document.createElement(name);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function button(text, label, onClick) {
  const node = element("button", "quiet", text);
  node.type = "button";
  node.setAttribute("aria-label", label);
  node.addEventListener("click", onClick);
  return node;
}

function prettyArguments(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

// One message as a node whose parts can be brought up to date while it grows.
class MessageView {
  constructor(index) {
    this.index = index;
    const m = conversation[index];
    this.node = element("article", `message ${m.role}`);
    this.node.append(element("h2", "", { user: "You", assistant: "Answer", tool: "Tool result" }[m.role]));
    this.body = element("div", "body");
    this.node.append(this.body);
    if (m.role === "assistant") {
      this.thinking = element("details");
      this.thinking.append(element("summary", "", "Thinking"), element("div", "inner"));
      this.text = element("div", "text");
      this.calls = element("div");
      this.tail = element("div");
      this.body.append(this.thinking, this.text, this.calls, this.tail);
    }
    this.actions = element("div", "actions");
    this.node.append(this.actions);
    this.update();
  }

  update() {
    const m = conversation[this.index];
    if (m.role !== "assistant") {
      this.body.textContent = m.content;
    } else {
      this.thinking.hidden = !m.reasoning;
      this.thinking.firstChild.textContent = m.content || m.done ? "Thinking" : "Thinking …";
      this.thinking.lastChild.textContent = m.reasoning ?? "";
      renderMarkdown(this.text, m.content);
      this.showCalls(m.calls ?? []);
      this.tail.replaceChildren();
      if (m.error) {
        const fault = element("p", "fault", m.error);
        fault.setAttribute("role", "alert");
        this.tail.append(fault);
      }
      if (m.note) this.tail.append(element("p", "note", m.note));
    }
    this.showActions(m);
  }

  showCalls(calls) {
    while (this.calls.children.length > calls.length) this.calls.lastChild.remove();
    calls.forEach((call, i) => {
      let view = this.calls.children[i];
      if (!view) {
        view = element("details", "call");
        view.open = true;
        view.append(element("summary"), element("div", "inner"));
        view.lastChild.append(element("pre"));
        this.calls.append(view);
      }
      view.firstChild.textContent = `Calls ${call.name}`;
      view.querySelector("pre").textContent = prettyArguments(call.arguments);
    });
  }

  showActions(m) {
    const busy = controller !== null;
    const actions = [];
    if (!busy && m.role === "user") actions.push(button("Edit", "Edit this message and ask again", () => edit(this)));
    if (!busy && m.role === "assistant") {
      actions.push(button("Retry", "Ask for another answer", () => retry(this.index)));
      if (m.content) actions.push(button("Copy", "Copy this answer", () => navigator.clipboard.writeText(m.content)));
      const answered = new Set(conversation.filter((other) => other.role === "tool").map((other) => other.tool_call_id));
      const open = (m.calls ?? []).find((call) => !answered.has(call.id));
      if (open && this.index >= conversation.length - 1 - answered.size) actions.push(button("Give the result", `Write the result of ${open.name}`, () => giveResult(this, open)));
    }
    this.actions.replaceChildren(...actions);
  }
}

let views = [];

function showAll() {
  views = conversation.map((_, i) => new MessageView(i));
  byId("messages").replaceChildren(...views.map((v) => v.node));
  byId("empty").hidden = conversation.length > 0;
}

function atBottom() {
  const box = byId("messages");
  return box.scrollHeight - box.scrollTop - box.clientHeight < 60;
}

function toBottom() {
  const box = byId("messages");
  box.scrollTop = box.scrollHeight;
}

function setBusy(busy) {
  byId("send").hidden = busy;
  byId("stop").hidden = !busy;
  byId("clear").disabled = busy;
  byId("messages").setAttribute("aria-busy", String(busy));
  for (const view of views) view.showActions(conversation[view.index]);
}

// A chunk into the growing answer.
function take(chunk, answer) {
  if (chunk.usage) answer.usage = chunk.usage;
  const choice = chunk.choices[0];
  if (!choice) return;
  const delta = choice.delta;
  if (delta.reasoning_content) answer.reasoning = (answer.reasoning ?? "") + delta.reasoning_content;
  if (delta.content) answer.content += delta.content;
  for (const call of delta.tool_calls ?? []) {
    answer.calls ??= [];
    if (call.id) answer.calls[call.index] = { id: call.id, name: call.function.name, arguments: "" };
    else answer.calls[call.index].arguments += call.function.arguments;
  }
  if (choice.finish_reason) answer.finish = choice.finish_reason;
}

function noteOf(answer, seconds) {
  const parts = [];
  if (answer.finish === "length") parts.push("cut off at the longest allowed answer");
  if (answer.stopped) parts.push("stopped");
  if (answer.usage) parts.push(`${answer.usage.prompt_tokens} + ${answer.usage.completion_tokens} tokens`, `${(answer.usage.completion_tokens / seconds).toFixed(1)} tokens/s`);
  return parts.join(" · ");
}

async function ask() {
  let fields, system;
  try {
    ({ fields, system } = requestFields());
  } catch {
    fields = {};
    system = "";
  }
  const body = { messages: requestMessages(system), ...fields };
  const answer = { role: "assistant", content: "" };
  conversation.push(answer);
  controller = new AbortController();
  showAll();
  setBusy(true);
  toBottom();
  const view = views.at(-1);
  const start = performance.now();
  let drawn = false; // an update is due at the next frame
  const draw = () => {
    drawn = false;
    const follow = atBottom();
    view.update();
    if (follow) toBottom();
  };
  try {
    for await (const chunk of streamChat(body, controller.signal)) {
      take(chunk, answer);
      if (!drawn) {
        drawn = true;
        requestAnimationFrame(draw);
      }
    }
  } catch (error) {
    if (error.name === "AbortError") answer.stopped = true;
    else answer.error = error.message;
  }
  controller = null;
  answer.done = true;
  answer.note = noteOf(answer, (performance.now() - start) / 1000);
  delete answer.usage;
  save();
  const follow = atBottom();
  view.update();
  setBusy(false);
  if (follow) toBottom();
  byId("announce").textContent = answer.error ? "" : answer.content || (answer.calls ? `Calls ${answer.calls.map((c) => c.name).join(", ")}` : "");
}

function retry(index) {
  conversation.length = index;
  save();
  ask();
}

// A message's text in a box; done(text) when the user is content with it.
function openEditor(view, label, text, done) {
  const box = element("textarea", "editor");
  box.value = text;
  box.rows = Math.min(12, text.split("\n").length + 1);
  box.setAttribute("aria-label", label);
  const close = () => view.update();
  const accept = () => box.value.trim() && done(box.value.trim());
  box.addEventListener("keydown", (event) => {
    if (event.key === "Escape") close();
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      accept();
    }
  });
  view.actions.replaceChildren(button("Send", "Send", accept), button("Cancel", "Leave it as it was", close));
  if (view.tail) view.tail.append(box);
  else view.body.replaceChildren(box);
  box.focus();
}

function edit(view) {
  openEditor(view, "Edit the message", conversation[view.index].content, (text) => {
    conversation.length = view.index;
    conversation.push({ role: "user", content: text });
    ask();
  });
}

function giveResult(view, call) {
  openEditor(view, `Result of ${call.name}`, "", (text) => {
    conversation.push({ role: "tool", tool_call_id: call.id, content: text });
    save();
    const answered = new Set(conversation.filter((m) => m.role === "tool").map((m) => m.tool_call_id));
    if (conversation[view.index].calls.every((c) => answered.has(c.id))) ask();
    else showAll();
  });
}

function grow(box) {
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight + 2}px`;
}

export function startChat() {
  load();
  showAll();
  toBottom();
  const box = byId("message");
  const send = () => {
    const text = box.value.trim();
    if (!text || controller) return;
    box.value = "";
    grow(box);
    conversation.push({ role: "user", content: text });
    save();
    ask();
  };
  const stop = () => controller?.abort();
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  box.addEventListener("input", () => grow(box));
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
  });
  addEventListener("keydown", (event) => event.key === "Escape" && stop());
  byId("stop").addEventListener("click", stop);
  byId("clear").addEventListener("click", () => {
    conversation = [];
    save();
    showAll();
    box.focus();
  });
  startSettings(byId("settings"), byId("open-settings"));
  box.focus();
}
