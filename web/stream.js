// A chat completion as an async sequence of chunks, from the server's event stream.
import { headers } from "./settings.js";

async function messageOf(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).error.message;
  } catch {
    return `${response.status} ${response.statusText}`;
  }
}

export async function* streamChat(body, signal) {
  const response = await fetch("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json", ...headers() },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  if (!response.ok) throw new Error(await messageOf(response));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  let done = false;
  for (;;) {
    const piece = await reader.read();
    if (piece.done) break;
    text += piece.value;
    let end;
    while ((end = text.indexOf("\n\n")) >= 0) {
      const block = text.slice(0, end);
      text = text.slice(end + 2);
      if (!block.startsWith("data: ")) continue; // a sign of life
      const data = block.slice(6);
      if (data === "[DONE]") {
        done = true;
        continue;
      }
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      yield chunk;
    }
  }
  if (!done) throw new Error("the connection ended before the answer did");
}
