// What the user set: kept in this browser; the key only until the tab closes.

const names = ["system", "temperature", "top_p", "top_k", "min_p", "max_tokens", "seed", "effort", "tools"];

function stored() {
  try {
    return JSON.parse(localStorage.getItem("settings")) ?? {};
  } catch {
    return {};
  }
}

export function headers() {
  const key = sessionStorage.getItem("key");
  return key ? { Authorization: `Bearer ${key}` } : {};
}

// The fields of a chat request that the settings decide; and the system prompt.
export function requestFields() {
  const s = stored();
  const out = {};
  for (const name of ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"]) {
    if (s[name] !== undefined && s[name] !== "") out[name] = Number(s[name]);
  }
  if (s.effort) out.reasoning_effort = s.effort;
  const tools = s.tools ? JSON.parse(s.tools) : [];
  if (tools.length) out.tools = tools;
  return { fields: out, system: s.system ?? "" };
}

// Empty when the text is a usable list of tools, else what is wrong with it.
function toolsFault(text) {
  if (!text.trim()) return "";
  try {
    return Array.isArray(JSON.parse(text)) ? "" : "Tools must be a JSON array.";
  } catch (error) {
    return `Tools are not valid JSON: ${error.message}`;
  }
}

export function startSettings(dialog, opener) {
  const form = dialog.querySelector("form");
  const fault = dialog.querySelector("#tools-fault");
  opener.addEventListener("click", () => {
    const s = stored();
    for (const name of names) form.elements[name].value = s[name] ?? "";
    form.elements.key.value = sessionStorage.getItem("key") ?? "";
    fault.textContent = "";
    dialog.showModal();
  });
  form.addEventListener("submit", (event) => {
    fault.textContent = toolsFault(form.elements.tools.value);
    if (fault.textContent) {
      event.preventDefault();
      form.elements.tools.focus();
      return;
    }
    const s = {};
    for (const name of names) {
      if (form.elements[name].value.trim()) s[name] = form.elements[name].value;
    }
    localStorage.setItem("settings", JSON.stringify(s));
    if (form.elements.key.value) sessionStorage.setItem("key", form.elements.key.value);
    else sessionStorage.removeItem("key");
  });
}
